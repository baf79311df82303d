-- Views: the ledger's public interface in SQL. Names and columns are stable; columns are only ever added at the end.
--
-- Loaded by every migration run (rollbook.ledger.migrate): dropped and created as a whole, they hold no data.
-- A domain '(all)' is the whole batch. "of planned" counts what is masked or not final as no success and score 0;
-- "of admitted" leaves it out. Both are always there, so that the denominator is explicit.
-- Each row counts twice, for its domain and for '(all)': GROUPING SETS would keep `WHERE batch_id = …` from reaching the
-- tables, and a ledger of years would be read from end to end for one batch.

-- Statistics --------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION domain_rank(domain text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN domain = '(all)' THEN 1000 ELSE coalesce(array_position(ARRAY['chrome', 'gimp', 'libreoffice_calc',
    'libreoffice_impress', 'libreoffice_writer', 'multi_apps', 'os', 'thunderbird', 'vlc', 'vs_code'], domain),
    100) END;
COMMENT ON FUNCTION domain_rank(text) IS 'OSWorld''s order of domains; others after them, (all) last';

CREATE OR REPLACE FUNCTION wilson_low(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN trials > 0 THEN greatest(0,
    (successes::float8 / trials + 3.841458820694124 / (2 * trials) - 1.959963984540054 * sqrt(
        (successes::float8 / trials) * (1 - successes::float8 / trials) / trials
        + 3.841458820694124 / (4 * trials::float8 * trials))) / (1 + 3.841458820694124 / trials)) END;
COMMENT ON FUNCTION wilson_low(bigint, bigint) IS 'lower end of the 95 % Wilson interval of a rate';

CREATE OR REPLACE FUNCTION wilson_high(successes bigint, trials bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN trials > 0 THEN least(1,
    (successes::float8 / trials + 3.841458820694124 / (2 * trials) + 1.959963984540054 * sqrt(
        (successes::float8 / trials) * (1 - successes::float8 / trials) / trials
        + 3.841458820694124 / (4 * trials::float8 * trials))) / (1 + 3.841458820694124 / trials)) END;
COMMENT ON FUNCTION wilson_high(bigint, bigint) IS 'upper end of the 95 % Wilson interval of a rate';

CREATE OR REPLACE FUNCTION pass_at_k(n bigint, c bigint, k bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE
    WHEN n < k OR k < 1 THEN NULL
    WHEN n - c < k THEN 1
    WHEN c = 0 THEN 0
    ELSE (SELECT 1 - exp(sum(ln(1 - k::float8 / i))) FROM generate_series(n - c + 1, n) AS i) END;
COMMENT ON FUNCTION pass_at_k(bigint, bigint, bigint) IS
    'unbiased pass@k from c successes in n samples: 1 - C(n-c, k) / C(n, k); NULL below k samples';

CREATE OR REPLACE FUNCTION pass_hat_k(n bigint, c bigint, k bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE
    WHEN n < k OR k < 1 THEN NULL
    WHEN c < k THEN 0
    ELSE (SELECT exp(sum(ln((c - i)::float8 / (n - i)))) FROM generate_series(0, k - 1) AS i) END;
COMMENT ON FUNCTION pass_hat_k(bigint, bigint, bigint) IS
    'unbiased pass^k, the chance that k samples all succeed: C(c, k) / C(n, k); NULL below k samples';

-- Decisions and results ---------------------------------------------------------------------------------------

CREATE VIEW current_admission AS
SELECT rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by, decided_at
FROM admission AS decision
WHERE NOT EXISTS (
    SELECT FROM admission AS newer
    WHERE newer.rollout_key = decision.rollout_key AND newer.attempt_index = decision.attempt_index
      AND newer.scope = decision.scope AND newer.decision_index > decision.decision_index);
COMMENT ON VIEW current_admission IS 'the decision in force per attempt and scope';

-- By hand is what no rule of models.admission decided; a test compares the list with theirs.
CREATE VIEW admission_history AS
SELECT batch_id, rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by, decided_at,
       policy_id NOT IN ('osworld-runtime-admission-v1', 'exclude-in-doubt-v1', 'rollbook-training-admission-v1',
           'rollbook-exact-training-admission-v1', 'legacy-mask-sample-v1', 'rollbook-reconciliation-v1') AS by_hand,
       NOT EXISTS (
           SELECT FROM admission AS newer
           WHERE newer.rollout_key = decision.rollout_key AND newer.attempt_index = decision.attempt_index
             AND newer.scope = decision.scope AND newer.decision_index > decision.decision_index) AS in_force,
       evidence
FROM admission AS decision JOIN rollout USING (rollout_key);
COMMENT ON VIEW admission_history IS 'every decision ever made, also those that a later one replaced';

CREATE VIEW rollout_result AS
SELECT rollout.rollout_key, rollout.batch_id, rollout.domain, rollout.task_id, rollout.sample, rollout.state,
       coalesce(rollout.current_attempt, 0) AS attempts, rollout.selected_attempt,
       rollout.state = 'final' AND coalesce(decision.admitted, false) AS admitted,
       rollout.state = 'final' AND NOT coalesce(decision.admitted, false) AS masked,
       decision.reason AS admission_reason, decision.policy_id AS admission_policy_id, decision.decided_by,
       outcome.termination_reason, outcome.score, outcome.reward, outcome.steps, outcome.detail, outcome.ended_at,
       rollout.task_digest, rollout.group_id, rollout.plan_order
FROM rollout
LEFT JOIN outcome
    ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = rollout.selected_attempt
LEFT JOIN current_admission AS decision
    ON decision.rollout_key = rollout.rollout_key AND decision.attempt_index = rollout.selected_attempt
    AND decision.scope = 'runtime';
COMMENT ON VIEW rollout_result IS 'one row per planned rollout: its state and, once it ended, the selected attempt';

CREATE VIEW rollcall AS
WITH counted AS (
    SELECT batch_id, part.domain,
           count(*) AS planned,
           count(*) FILTER (WHERE admitted) AS admitted,
           count(*) FILTER (WHERE masked) AS masked,
           count(*) FILTER (WHERE state IN ('queued', 'running')) AS running,
           count(*) FILTER (WHERE state = 'waiting') AS waiting,
           count(*) FILTER (WHERE state = 'queued') AS queued
    FROM rollout_result AS result CROSS JOIN LATERAL (VALUES (result.domain), ('(all)')) AS part (domain)
    GROUP BY batch_id, part.domain
), excluded AS (
    SELECT batch_id, part.domain, count(*) AS excluded
    FROM excluded_task CROSS JOIN LATERAL (VALUES (excluded_task.domain), ('(all)')) AS part (domain)
    GROUP BY batch_id, part.domain
), reason AS (
    SELECT batch_id, part.domain, admitted, termination_reason, coalesce(admission_reason, '(undecided)') AS decided,
           count(*) AS number
    FROM rollout_result AS result CROSS JOIN LATERAL (VALUES (result.domain), ('(all)')) AS part (domain)
    WHERE state = 'final' GROUP BY batch_id, part.domain, admitted, termination_reason, admission_reason
), summed AS (
    -- Rows of one key bear the same sum: jsonb_object_agg may keep any of them.
    SELECT batch_id, domain, admitted, termination_reason, decided,
           sum(number) OVER (PARTITION BY batch_id, domain, admitted, termination_reason)::bigint AS ended_so,
           sum(number) OVER (PARTITION BY batch_id, domain, admitted, decided)::bigint AS decided_so
    FROM reason
), reasons AS (
    SELECT batch_id, domain,
           jsonb_object_agg(termination_reason, ended_so) FILTER (WHERE admitted) AS admitted_reasons,
           jsonb_object_agg(termination_reason, ended_so) FILTER (WHERE NOT admitted) AS masked_reasons,
           jsonb_object_agg(decided, decided_so) FILTER (WHERE NOT admitted) AS masked_admission_reasons
    FROM summed GROUP BY batch_id, domain
)
SELECT batch_id, domain, coalesce(planned, 0) AS planned, coalesce(admitted, 0) AS admitted,
       coalesce(masked, 0) AS masked, coalesce(running, 0) AS running, coalesce(waiting, 0) AS waiting,
       coalesce(queued, 0) AS queued,
       coalesce(admitted_reasons, '{}') AS admitted_reasons, coalesce(masked_reasons, '{}') AS masked_reasons,
       coalesce(masked_admission_reasons, '{}') AS masked_admission_reasons, coalesce(excluded, 0) AS excluded
FROM counted FULL JOIN excluded USING (batch_id, domain) LEFT JOIN reasons USING (batch_id, domain)
ORDER BY batch_id, domain_rank(domain), domain;
COMMENT ON VIEW rollcall IS
    'per batch and domain: planned = admitted + masked + running + waiting, with reasons; excluded tasks apart';

CREATE VIEW excluded_tasks AS
SELECT batch_id, domain, task_id, task_digest, reason, launch_id, recorded_at FROM excluded_task;
COMMENT ON VIEW excluded_tasks IS 'tasks that a batch leaves out because they cannot be run or scored here';

CREATE VIEW scoreboard AS
WITH scored AS (
    SELECT batch_id, part.domain,
           count(*) AS planned,
           count(*) FILTER (WHERE admitted) AS admitted,
           count(*) FILTER (WHERE masked) AS masked,
           count(*) FILTER (WHERE admitted AND score >= 1) AS binary_success_count,
           coalesce(sum(score) FILTER (WHERE admitted), 0) AS score_sum,
           sum(attempts) AS attempts,
           -- the first attempt in which the agent acted is its own; whatever follows is another throw of the dice
           coalesce(sum(greatest(attempts - acted.attempt_index, 0)), 0) AS further_attempts,
           count(*) FILTER (WHERE admitted AND score >= 1
               AND (acted.attempt_index IS NULL OR selected_attempt <= acted.attempt_index)) AS first_success_count
    FROM rollout_result AS result
    LEFT JOIN LATERAL (
        SELECT attempt_index FROM model_call
        WHERE model_call.rollout_key = result.rollout_key AND result.attempts > 1
            AND decides AND jsonb_array_length(actions) > 0
        ORDER BY attempt_index LIMIT 1) AS acted ON true
    CROSS JOIN LATERAL (VALUES (result.domain), ('(all)')) AS part (domain)
    GROUP BY batch_id, part.domain
), again AS (
    SELECT batch_id, part.domain, count(*) AS reruns, count(*) FILTER (WHERE supersede) AS superseded
    FROM rerun_request JOIN rollout USING (rollout_key)
    CROSS JOIN LATERAL (VALUES (rollout.domain), ('(all)')) AS part (domain)
    GROUP BY batch_id, part.domain
), broken AS (
    SELECT batch_id, part.domain, count(*) AS attempts
    FROM outcome JOIN rollout USING (rollout_key)
    CROSS JOIN LATERAL (VALUES (rollout.domain), ('(all)')) AS part (domain)
    WHERE infrastructure_failure_reason = 'desktop_broken'
    GROUP BY batch_id, part.domain
), known AS (  -- the first line in the words of the index outcome_evaluated_then_closed_idx, the rest like the audit
    SELECT batch_id, part.domain, count(*) AS evaluated_then_closed
    FROM outcome JOIN rollout USING (rollout_key) JOIN evaluation USING (rollout_key, attempt_index)
    CROSS JOIN LATERAL (VALUES (rollout.domain), ('(all)')) AS part (domain)
    WHERE NOT runtime_eligible AND evaluations > 0 AND evaluation.completed
        AND (closed_by IN ('claim', 'cancel', 'reconcile') OR outcome.score IS NULL OR EXISTS (
            SELECT FROM attempt AS later
            WHERE later.rollout_key = outcome.rollout_key AND later.attempt_index > outcome.attempt_index)
        OR next_state <> 'final' OR EXISTS (
            SELECT FROM rerun_request AS again_
            WHERE again_.rollout_key = outcome.rollout_key AND after_attempt = outcome.attempt_index))
    GROUP BY batch_id, part.domain
)
SELECT batch_id, domain, planned, admitted, masked, binary_success_count,
       binary_success_count::float8 / planned AS binary_success_rate_of_planned,
       binary_success_count::float8 / nullif(admitted, 0) AS binary_success_rate_of_admitted,
       score_sum / planned AS mean_score_of_planned,
       score_sum / nullif(admitted, 0) AS mean_score_of_admitted,
       wilson_low(binary_success_count, planned) AS wilson_low_of_planned,
       wilson_high(binary_success_count, planned) AS wilson_high_of_planned,
       wilson_low(binary_success_count, admitted) AS wilson_low_of_admitted,
       wilson_high(binary_success_count, admitted) AS wilson_high_of_admitted,
       scored.attempts, coalesce(reruns, 0) AS reruns, coalesce(superseded, 0) AS superseded,
       coalesce(evaluated_then_closed, 0) AS evaluated_then_closed,
       coalesce(broken.attempts, 0) AS desktop_broken, further_attempts,
       first_success_count::float8 / planned AS binary_success_rate_of_first_attempts,
       wilson_low(first_success_count, planned) AS wilson_low_of_first_attempts,
       wilson_high(first_success_count, planned) AS wilson_high_of_first_attempts
FROM scored LEFT JOIN again USING (batch_id, domain) LEFT JOIN known USING (batch_id, domain)
LEFT JOIN broken USING (batch_id, domain)
ORDER BY batch_id, domain_rank(domain), domain;
COMMENT ON VIEW scoreboard IS 'scores per batch and domain, over both denominators, with 95 % Wilson intervals';

CREATE VIEW pass_k AS
WITH task AS NOT MATERIALIZED (
    SELECT batch_id, task_id, count(*) AS planned, count(*) FILTER (WHERE admitted) AS admitted,
           count(*) FILTER (WHERE admitted AND score >= 1) AS successes
    FROM rollout_result GROUP BY batch_id, task_id
), widest AS (
    SELECT batch_id, max(planned) AS samples FROM task GROUP BY batch_id
)
SELECT batch_id, k, count(*) AS tasks,
       count(*) FILTER (WHERE planned >= k) AS tasks_of_planned,
       avg(pass_at_k(planned, successes, k)) AS pass_at_k_of_planned,
       avg(pass_hat_k(planned, successes, k)) AS pass_hat_k_of_planned,
       count(*) FILTER (WHERE admitted >= k) AS tasks_of_admitted,
       avg(pass_at_k(admitted, successes, k)) AS pass_at_k_of_admitted,
       avg(pass_hat_k(admitted, successes, k)) AS pass_hat_k_of_admitted
FROM widest CROSS JOIN LATERAL generate_series(1, least(samples, 64)) AS k JOIN task USING (batch_id)
GROUP BY batch_id, k ORDER BY batch_id, k;
COMMENT ON VIEW pass_k IS 'pass@k and pass^k per batch, averaged over the tasks that have k samples';

CREATE VIEW sample_spread AS
WITH width AS NOT MATERIALIZED (
    SELECT batch_id, count(DISTINCT sample) AS samples FROM rollout GROUP BY batch_id
), task AS (
    SELECT batch_id, task_id, count(*) AS samples FROM rollout GROUP BY batch_id, task_id
), run AS (
    SELECT batch_id, sample, count(*) AS tasks,
           count(*) FILTER (WHERE admitted AND score >= 1)::float8 / count(*) AS success_rate,
           coalesce(sum(score) FILTER (WHERE admitted), 0) / count(*) AS mean_score
    FROM rollout_result JOIN task USING (batch_id, task_id) JOIN width USING (batch_id, samples)
    GROUP BY batch_id, sample
)
SELECT batch_id, samples, avg(success_rate) AS success_rate,
       stddev_samp(success_rate) AS success_rate_stddev,
       stddev_samp(success_rate) / sqrt(samples) AS success_rate_stderr,
       avg(mean_score) AS mean_score, stddev_samp(mean_score) AS mean_score_stddev,
       stddev_samp(mean_score) / sqrt(samples) AS mean_score_stderr,
       coalesce(max(tasks), 0) AS tasks
FROM width LEFT JOIN run USING (batch_id) GROUP BY batch_id, samples ORDER BY batch_id;
COMMENT ON VIEW sample_spread IS
    'run-to-run spread, of planned: each sample index is one run over the tasks that have every sample';

-- Training ----------------------------------------------------------------------------------------------------

-- Who votes is who would be trained on: a member that is masked for counting or for training has no say in what the
-- others are compared with. Without a trainer's identity nothing is trained on; there counting alone decides. A group of
-- which members are still to come has no baseline: it would be another one tomorrow. Where the contract says so, a
-- broken desktop is trained on with reward 0, unless a later decision is in force; it still has no score.
CREATE VIEW training_rows AS
WITH member AS (
    SELECT rollout.rollout_key, rollout.batch_id, batch.contract_digest, batch.purpose, rollout.domain,
           rollout.task_id, rollout.task_digest, rollout.sample, rollout.identity_source, rollout.sampling_event_id,
           rollout.source_group_id, rollout.group_id, rollout.rollout_index, attempt.attempt_index,
           attempt.trajectory_rollout_id, attempt.execution_id, outcome.termination_reason, outcome.score,
           CASE WHEN zeroed THEN 0 ELSE outcome.reward END AS reward,
           runtime.admitted AS runtime_admitted, runtime.reason AS runtime_reason,
           coalesce(training.admitted, false) AS training_admitted,
           CASE WHEN zeroed AND identity_source = 'caller' THEN 'desktop_broken_zero_reward'
                ELSE coalesce(training.reason, CASE
               WHEN identity_source <> 'caller' THEN 'caller_owned_rollout_identity_unavailable'
               WHEN NOT runtime.admitted THEN 'rollout_sample_masked' END) END AS training_reason,
           zeroed OR runtime.admitted AND (identity_source <> 'caller' OR coalesce(training.admitted, false)) AS votes,
           zeroed, member.planned AS group_planned
    FROM rollout
    JOIN batch USING (batch_id)
    JOIN attempt ON attempt.rollout_key = rollout.rollout_key AND attempt.attempt_index = rollout.selected_attempt
    JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = rollout.selected_attempt
    JOIN current_admission AS runtime ON runtime.rollout_key = rollout.rollout_key
        AND runtime.attempt_index = rollout.selected_attempt AND runtime.scope = 'runtime'
    LEFT JOIN current_admission AS training ON training.rollout_key = rollout.rollout_key
        AND training.attempt_index = rollout.selected_attempt AND training.scope = 'training'
    CROSS JOIN LATERAL (SELECT outcome.termination_reason = 'desktop_broken' AND outcome.closed_by = 'episode'
        AND coalesce(batch.contract ->> 'on_desktop_broken' = 'zero_reward', false)
        AND runtime.decision_index = 1 AND coalesce(training.decision_index, 1) = 1 AS zeroed) AS worth
    JOIN (SELECT batch_id, group_id, count(*) AS planned FROM rollout GROUP BY batch_id, group_id) AS member
        ON member.batch_id = rollout.batch_id AND member.group_id = rollout.group_id
    WHERE rollout.state = 'final'
), compared AS (
    SELECT member.*, count(*) OVER peers AS group_members, count(*) FILTER (WHERE votes) OVER peers AS group_valid,
           -- exact, so that the order in which rows are read decides no bit: float8 adds up differently in another order
           (avg(reward::text::numeric) FILTER (WHERE votes) OVER peers)::float8 AS baseline
    FROM member WINDOW peers AS (PARTITION BY batch_id, group_id)
)
SELECT rollout_key, batch_id, contract_digest, purpose, domain, task_id, task_digest, sample, identity_source,
       sampling_event_id, source_group_id, group_id, rollout_index, attempt_index, trajectory_rollout_id, execution_id,
       termination_reason, score, reward, runtime_admitted, runtime_reason, training_admitted, training_reason,
       (zeroed OR runtime_admitted AND training_admitted) AND identity_source = 'caller' AS trainable,
       group_members, group_valid,
       CASE WHEN group_members = group_planned THEN baseline END AS group_baseline,
       CASE WHEN votes AND group_members = group_planned AND group_valid >= 2
            THEN reward - baseline END AS group_advantage,
       group_planned,
       CASE WHEN zeroed THEN 'desktop_broken' WHEN reward IS NOT NULL THEN 'evaluator' END AS reward_source
FROM compared;
COMMENT ON VIEW training_rows IS
    'selected attempts with both decisions; whole groups are compared, masked members left out, fewer than two no signal';

-- Broken desktops -------------------------------------------------------------------------------------------

CREATE VIEW broken_desktops AS
SELECT batch_id, domain, task_id,
       coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy,
       count(DISTINCT rollout_key) AS rollouts, count(*) AS attempts,
       count(*) FILTER (WHERE coalesce(tampered, false)) AS tampered,
       count(*) FILTER (WHERE next_state <> 'final') AS tried_again,
       min(contract ->> 'on_desktop_broken') AS on_desktop_broken
FROM outcome JOIN rollout USING (rollout_key) JOIN batch USING (batch_id)
LEFT JOIN examination USING (rollout_key, attempt_index)
WHERE infrastructure_failure_reason = 'desktop_broken'
GROUP BY batch_id, domain, task_id, coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind')
ORDER BY batch_id, domain_rank(domain), domain, task_id;
COMMENT ON VIEW broken_desktops IS 'attempts that ended as desktop_broken, per batch, task and policy';

-- Operation ---------------------------------------------------------------------------------------------------

CREATE VIEW episode_timeline AS
SELECT rollout_key, NULL::integer AS attempt_index, planned_at AS at, 'planned' AS event, NULL::integer AS step,
       task_id AS detail FROM rollout
UNION ALL
SELECT rollout_key, NULL, queued_at, 'queued', NULL, '' FROM rollout WHERE queued_at IS NOT NULL
UNION ALL
SELECT rollout_key, attempt_index, claimed_at, 'claimed', NULL, 'run ' || run_id FROM attempt
UNION ALL
SELECT rollout_key, attempt_index, created_at, 'desktop intended', NULL, provider FROM sandbox
UNION ALL
SELECT rollout_key, attempt_index, started_at, 'desktop ready', NULL, sandbox_id FROM sandbox
WHERE started_at IS NOT NULL
UNION ALL
SELECT rollout_key, attempt_index, stopped_at, 'desktop stopped', NULL, stop_reason FROM sandbox
WHERE stopped_at IS NOT NULL
UNION ALL
SELECT rollout_key, attempt_index, recorded_at, 'decided', step,
       concat_ws('; ', nullif(summary, ''), policy_stop_reason, parse_error) FROM model_call
UNION ALL
SELECT rollout_key, attempt_index, ended_at, CASE WHEN step = 0 THEN 'observed' ELSE 'acted' END, step,
       concat_ws('; ', jsonb_array_length(actions) || ' actions',
           CASE WHEN in_doubt > 0 THEN in_doubt || ' in doubt' END,
           CASE WHEN raised > 0 THEN raised || ' raised' END) FROM turn
UNION ALL
SELECT rollout_key, attempt_index, recorded_at, 'evaluated', NULL,
       CASE WHEN completed THEN 'score ' || score ELSE reason END FROM evaluation
UNION ALL
SELECT rollout_key, attempt_index, recorded_at, 'examined', NULL,
       concat_ws('; ', 'cause ' || cause || ': ' || cause_detail, nullif(detail, '')) FROM examination
UNION ALL
SELECT rollout_key, attempt_index, ended_at, 'ended', NULL, termination_reason FROM outcome
UNION ALL
SELECT rollout_key, attempt_index, decided_at, CASE WHEN admitted THEN 'admitted' ELSE 'masked' END, NULL,
       concat_ws('; ', scope, reason, decided_by) FROM admission
UNION ALL
SELECT rollout_key, after_attempt, requested_at, CASE WHEN supersede THEN 'superseded' ELSE 'rerun requested' END, NULL,
       concat_ws('; ', reason, requested_by) FROM rerun_request;
COMMENT ON VIEW episode_timeline IS 'everything that happened to a rollout; filter by rollout_key, order by at';

CREATE VIEW live_sandboxes AS
SELECT sandbox_key, deployment_id, provider, sandbox_id, batch_id, sandbox.rollout_key, sandbox.attempt_index,
       sandbox.state, sandbox.isolation, image_digest, view_url, created_at, started_at, lease_until,
       lease_until < now() AS lease_expired, outcome.rollout_key IS NULL AS attempt_open
FROM sandbox JOIN rollout USING (rollout_key)
LEFT JOIN outcome ON outcome.rollout_key = sandbox.rollout_key AND outcome.attempt_index = sandbox.attempt_index
WHERE sandbox.state <> 'stopped'
ORDER BY created_at;
COMMENT ON VIEW live_sandboxes IS 'desktops that were intended or are running, and whether their attempt is open';

CREATE VIEW model_usage AS
SELECT batch_id, domain, policy_kind, coalesce(model_name, policy_kind) AS model_name, model_version,
       count(*) AS calls, count(*) FILTER (WHERE accepted) AS accepted,
       count(*) FILTER (WHERE parse_attempt > 1) AS parse_retries,
       count(*) FILTER (WHERE NOT completed) AS failed,
       sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
       sum(latency_s) AS latency_total_s,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_s) AS latency_p50_s,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_s) AS latency_p95_s
FROM model_call JOIN rollout USING (rollout_key)
GROUP BY batch_id, domain, policy_kind, coalesce(model_name, policy_kind), model_version
ORDER BY batch_id, domain_rank(domain), domain;
COMMENT ON VIEW model_usage IS 'calls, tokens and latencies per batch, domain and model';

-- The lines of a batch's digest (rollbook.ledger.completion). Append kinds, never change a line: the records of finished
-- batches hold the lines as they were. Names are last on their lines: they may contain spaces.
CREATE VIEW batch_record AS
SELECT batch_id, row_number() OVER (
        PARTITION BY batch_id ORDER BY plan_order, rank, attempt_index, item COLLATE "C", number) AS position, line
FROM (
    SELECT batch_id, -1 AS plan_order, 0 AS rank, 0 AS attempt_index, '' AS item, 0::bigint AS number,
           concat_ws(' ', 'batch', contract_digest, batch_id) AS line FROM batch
    UNION ALL
    SELECT batch_id, -1, 1, 0, task_id, 0, concat_ws(' ', 'excluded_task', row_digest, task_id) FROM excluded_task
    UNION ALL
    SELECT batch_id, plan_order, 0, 0, '', 0, concat_ws(' ', 'rollout', task_digest, rollout_key) FROM rollout
    UNION ALL
    SELECT batch_id, plan_order, 1, attempt_index, '', 0,
           concat_ws(' ', 'attempt', row_digest, attempt_index, rollout_key)
    FROM rollout JOIN attempt USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 2, attempt_index, '', 0, concat_ws(' ', 'model_call',
           encode(sha256(convert_to(string_agg(row_digest, '' ORDER BY step, parse_attempt), 'UTF8')), 'hex'),
           attempt_index, rollout_key)
    FROM rollout JOIN model_call USING (rollout_key) GROUP BY batch_id, plan_order, rollout_key, attempt_index
    UNION ALL
    SELECT batch_id, plan_order, 3, attempt_index, '', 0, concat_ws(' ', 'turn',
           encode(sha256(convert_to(string_agg(row_digest, '' ORDER BY step), 'UTF8')), 'hex'),
           attempt_index, rollout_key)
    FROM rollout JOIN turn USING (rollout_key) GROUP BY batch_id, plan_order, rollout_key, attempt_index
    UNION ALL
    SELECT batch_id, plan_order, 4, attempt_index, '', 0,
           concat_ws(' ', 'evaluation', row_digest, attempt_index, rollout_key)
    FROM rollout JOIN evaluation USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 5, attempt_index, '', 0,
           concat_ws(' ', 'examination', row_digest, attempt_index, rollout_key)
    FROM rollout JOIN examination USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 6, attempt_index, '', 0,
           concat_ws(' ', 'outcome', row_digest, attempt_index, rollout_key)
    FROM rollout JOIN outcome USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 7, attempt_index, scope, decision_index,
           concat_ws(' ', 'admission', row_digest, attempt_index, scope, decision_index, rollout_key)
    FROM rollout JOIN admission USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 8, after_attempt, '', request,
           concat_ws(' ', 'rerun_request', row_digest, after_attempt, rollout_key)
    FROM rollout JOIN rerun_request USING (rollout_key)
    UNION ALL
    SELECT batch_id, plan_order, 9, attempt_index, phase || ' ' || token, 0,
           concat_ws(' ', 'phase', row_digest, attempt_index, phase, rollout_key)
    FROM rollout JOIN phase USING (rollout_key)
) AS record;
COMMENT ON VIEW batch_record IS 'the lines whose SHA-256 is the digest of a batch; filter by batch_id, order by position';

CREATE VIEW phases AS
SELECT batch_id, domain, rollout_key, attempt_index, phase, ok, guest_failed, detail, exchanges, pressure, log_sha256,
       screenshot_sha256, started_at, duration_s
FROM phase JOIN rollout USING (rollout_key)
ORDER BY rollout_key, attempt_index, started_at;
COMMENT ON VIEW phases IS 'runs of OSWorld''s setup, postconfig and evaluation against a desktop, failed ones too';

-- 80: a process waits for most of the time, and the half seconds on which canonical setups and postconfigs rely are
-- not enough any more.
CREATE VIEW under_pressure AS
SELECT batch_id, domain, rollout_key, attempt_index, phase, resource, percent
FROM (
    SELECT DISTINCT ON (rollout_key) batch_id, domain, rollout_key, attempt_index, phase.phase, resource,
           CAST(read.percent AS double precision) AS percent
    FROM rollout JOIN phase USING (rollout_key)
    CROSS JOIN LATERAL jsonb_each_text(phase.pressure) AS read (resource, percent)
    WHERE attempt_index = selected_attempt AND phase.ok
    ORDER BY rollout_key, CAST(read.percent AS double precision) DESC
) AS worst
WHERE percent > 80;
COMMENT ON VIEW under_pressure IS 'rollouts whose selected attempt was set up or evaluated on a host under pressure';
