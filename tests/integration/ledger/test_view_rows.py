"""Every public view, row by row, on the ledger that was played by hand."""

import re
from datetime import datetime
from typing import Any

import pytest

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY
from rollbook.ledger import Ledger
from tests.support.ledger import rows
from tests.support.worked_ledger import OS, Worked


@pytest.fixture(scope="module")
async def worked(ledger: Ledger) -> Worked:
    """The worked ledger, played once."""
    made = Worked(ledger)
    await made.play()
    return made


async def values(worked: Worked, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in await rows(worked.ledger, query)]


async def test_rollout_result(worked: Worked) -> None:
    found = await values(
        worked,
        """SELECT task_id, sample, state, attempts, selected_attempt, admitted, masked, admission_reason,
                  termination_reason, score, reward, steps
           FROM rollout_result WHERE batch_id = 'nightly-7' ORDER BY domain, task_id, sample""",
    )
    valid, none = "valid_evaluated_outcome", (None,) * 5
    assert found == [
        ("browse", 0, "final", 1, 1, False, True, "leaked", "agent_done", 0.5, 0.0, 1),
        ("browse", 1, "final", 1, 1, False, True, "timeout", "timeout", None, None, 1),
        ("crop", 0, "queued", 0, None, False, False, *none),
        ("crop", 1, "running", 1, None, False, False, *none),
        ("layer", 0, "running", 1, None, False, False, *none),
        ("layer", 1, "waiting", 1, 1, False, False, "timeout", "timeout", None, None, 1),
        (OS, 0, "final", 2, 2, True, False, valid, "agent_done", 1.0, 1.0, 2),
        (OS, 1, "final", 1, 1, True, False, valid, "agent_done", 0.0, 0.0, 5),
        (OS, 2, "final", 2, 2, True, False, valid, "agent_done", 0.5, 0.0, 4),
        ("mail", 0, "waiting", 0, None, False, False, *none),
        ("mail", 1, "waiting", 0, None, False, False, *none),
        ("play", 0, "final", 1, 1, True, False, valid, "agent_done", 1.0, 1.0, 6),
        ("play", 1, "final", 1, 1, False, True, "action_in_doubt", "agent_done", 1.0, 1.0, 1),
    ]


async def test_scoreboard_counts_what_was_run_again(worked: Worked) -> None:
    """Two reruns, one of them of an admitted result; twelve attempts of thirteen rollouts."""
    found = await values(
        worked, "SELECT domain, attempts, reruns, superseded FROM scoreboard WHERE batch_id = 'nightly-7'"
    )
    assert found == [
        ("chrome", 2, 0, 0),
        ("gimp", 3, 1, 0),
        ("os", 5, 1, 1),
        ("thunderbird", 0, 0, 0),
        ("vlc", 2, 0, 0),
        ("(all)", 12, 2, 1),
    ]


async def test_pass_k_over_admitted(worked: Worked) -> None:
    """Admitted: os 1 of 3, vlc 1 of 1. @1 (1/3 + 1) / 2; @2 and @3 os alone."""
    found = await values(
        worked,
        """SELECT k, tasks_of_admitted, pass_at_k_of_admitted, pass_hat_k_of_admitted FROM pass_k
           WHERE batch_id = 'nightly-7' ORDER BY k""",
    )
    assert found == [
        (1, 2, pytest.approx(2 / 3), pytest.approx(2 / 3)),
        (2, 1, pytest.approx(2 / 3), 0),
        (3, 1, 1, 0),
    ]


async def test_current_admission(worked: Worked) -> None:
    """Each attempt that ended, not only the selected ones; the newest decision of each scope."""
    found = await values(
        worked,
        f"""SELECT rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by
            FROM current_admission WHERE rollout_key IN ('{worked.key("play", 0)}', '{worked.key(OS, 0)}',
                '{worked.key(OS, 2, "event-1")}') ORDER BY 1, 2, 3""",
    )
    doubt, valid = "exclude-in-doubt-v1", "valid_evaluated_outcome"
    runtime, hand = "osworld-runtime-admission-v1", "rollbook-manual-v1"
    assert found == [
        (worked.key(OS, 2, "event-1"), 1, "runtime", 1, True, runtime, valid, "episode"),
        (worked.key(OS, 2, "event-1"), 1, "training", 2, False, hand, "leaked the answer", "ann"),
        (worked.key(OS, 0), 1, "runtime", 1, False, runtime, "sandbox_lost", "episode"),
        (worked.key(OS, 0), 2, "runtime", 2, True, doubt, valid, "ann"),
        (worked.key("play", 0), 1, "runtime", 3, True, doubt, valid, "ann"),
    ]


async def test_admission_history(worked: Worked) -> None:
    found = await values(
        worked,
        f"""SELECT decision_index, admitted, policy_id, reason, decided_by, by_hand, in_force, evidence ->> 'because'
            FROM admission_history WHERE rollout_key = '{worked.key("play", 0)}' ORDER BY decision_index""",
    )
    valid = "valid_evaluated_outcome"
    assert found == [
        (1, True, "osworld-runtime-admission-v1", valid, "episode", False, False, None),
        (2, False, "rollbook-manual-v1", "a popup", "bob", True, False, None),
        (3, True, "exclude-in-doubt-v1", valid, "ann", False, True, "the paper's rule"),
    ]
    both = """
        SELECT (SELECT count(*) FROM admission) AS kept, (SELECT count(*) FROM admission_history) AS told,
               (SELECT count(*) FROM current_admission) AS current,
               (SELECT count(*) FROM admission_history WHERE in_force) AS in_force
    """
    (counted,) = await rows(worked.ledger, both)
    assert counted["kept"] == counted["told"]
    assert counted["current"] == counted["in_force"]


async def test_by_hand_is_what_no_policy_of_ours_decides(ledger: Ledger) -> None:
    (row,) = await rows(ledger, "SELECT pg_get_viewdef('admission_history') AS definition")
    listed = set(re.findall(r"'([^']+)'", row["definition"]))
    assert listed == {*POLICIES, LEGACY_POLICY, RECONCILED_POLICY}


async def test_live_sandboxes(worked: Worked) -> None:
    """Intended or running, never the stopped one; oldest first."""
    found = await rows(worked.ledger, "SELECT * FROM live_sandboxes")
    fixed = [tuple(value for value in row.values() if not isinstance(value, datetime)) for row in found]
    lost, layer, crop = worked.key(OS, 0), worked.key("layer", 0), worked.key("crop", 1)
    url = "http://127.0.0.1:7000/live"
    batch = "nightly-7"
    assert fixed == [
        ("desktop-lost", "test", "docker", "id-lost", batch, lost, 1, "running", "partial", None, "", False, False),
        ("desktop-intended", "test", "docker", None, batch, layer, 1, "intended", None, None, "", None, True, True),
        ("desktop-live", "test", "docker", "id-live", batch, crop, 1, "running", "partial", None, url, False, True),
    ]
    for row in found:
        assert (row["started_at"] is None) == (row["state"] == "intended")
        assert (row["lease_until"] < row["created_at"]) == row["lease_expired"]


async def test_model_usage(worked: Worked) -> None:
    """One row per domain and model; percentiles over the calls that were timed."""
    found = await values(
        worked,
        """SELECT domain, policy_kind, model_name, model_version, calls, accepted, parse_retries, failed, prompt_tokens,
                  completion_tokens, latency_total_s, latency_p50_s, latency_p95_s
           FROM model_usage WHERE batch_id = 'nightly-7' ORDER BY domain, policy_kind""",
    )
    untimed = (0, 0, None, None, None, None, None)
    assert found == [
        ("chrome", "noop", "noop", None, 2, 2, *untimed),
        ("gimp", "noop", "noop", None, 1, 1, *untimed),
        ("gimp", "openai", "m", "m-1", 2, 1, 1, 0, 230, 30, 6.0, 3.0, pytest.approx(3.9)),
        ("os", "noop", "noop", None, 14, 14, *untimed),
        ("vlc", "noop", "noop", None, 7, 7, *untimed),
    ]


async def test_episode_timeline(worked: Worked) -> None:
    """Every event has a row of its table behind it, and every kind of event is there."""
    found = await values(worked, "SELECT event, count(*) FROM episode_timeline GROUP BY event ORDER BY event")
    behind = """
        SELECT (SELECT count(*) FROM rollout) AS planned, (SELECT count(*) FROM attempt) AS claimed,
               (SELECT count(*) FROM outcome) AS ended, (SELECT count(*) FROM evaluation) AS evaluated,
               (SELECT count(*) FROM model_call) AS decided,
               (SELECT count(*) FROM admission WHERE admitted) AS admitted,
               (SELECT count(*) FROM admission WHERE NOT admitted) AS masked,
               (SELECT count(*) FROM turn WHERE step = 0) AS observed,
               (SELECT count(*) FROM turn WHERE step > 0) AS acted
    """
    (counted,) = await rows(worked.ledger, behind)
    rest = {"desktop intended": 4, "desktop ready": 3, "desktop stopped": 1, "queued": 1}
    asked = {"rerun requested": 1, "superseded": 1}
    assert dict(found) == dict(counted) | rest | asked
    (doubted,) = await values(
        worked,
        f"""SELECT detail FROM episode_timeline
            WHERE rollout_key = '{worked.key("play", 1)}' AND event = 'acted'""",
    )
    assert doubted == ("2 actions; 1 in doubt",)


async def test_training_rows(worked: Worked) -> None:
    found = await values(
        worked,
        """SELECT sample, identity_source, sampling_event_id, source_group_id, purpose, runtime_admitted,
                  runtime_reason, training_admitted, training_reason, trainable, group_members, group_valid,
                  group_planned
           FROM training_rows WHERE batch_id = 'event-1' ORDER BY sample""",
    )
    given, valid = ("caller", "sampling-event-1", "g", "train"), (True, "valid_evaluated_outcome")
    assert found == [
        (0, *given, *valid, True, "valid_training_sample", True, 4, 2, 4),
        (1, *given, *valid, True, "valid_training_sample", True, 4, 2, 4),
        (2, *given, *valid, False, "leaked the answer", False, 4, 2, 4),
        (3, *given, False, "timeout", False, "rollout_sample_masked", False, 4, 2, 4),
    ]
    derived = await values(
        worked,
        """SELECT task_id, sample, identity_source, training_admitted, training_reason, trainable, group_members,
                  group_valid, group_planned, group_baseline, group_advantage
           FROM training_rows WHERE batch_id = 'nightly-7' AND domain = 'os' ORDER BY sample""",
    )
    unavailable = "caller_owned_rollout_identity_unavailable"
    third = pytest.approx(1 / 3)
    assert derived == [
        (OS, 0, "derived", False, unavailable, False, 3, 3, 3, third, pytest.approx(2 / 3)),
        (OS, 1, "derived", False, unavailable, False, 3, 3, 3, third, pytest.approx(-1 / 3)),
        (OS, 2, "derived", False, unavailable, False, 3, 3, 3, third, pytest.approx(-1 / 3)),
    ]
