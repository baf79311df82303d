"""Whether an end is what the committed evidence says. What it does not bear out is masked, never counted."""

from dataclasses import replace

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.outcome import Infra, OutcomeFacts, classify
from rollbook.ledger.ending import End

_EVIDENCE = text("""
    SELECT coalesce(last.step, 0) AS decided, last.terminal_action, last.policy_stop_reason,
           coalesce(last.unseen, false) AS unseen, seen.turns, seen.newest
    FROM (SELECT count(*) AS turns, coalesce(max(step), 0) AS newest FROM turn
          WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index) AS seen
    LEFT JOIN LATERAL (
        SELECT step, terminal_action, policy_stop_reason,
               jsonb_array_length(actions) = 0 AND num_nonnulls(terminal_action, policy_stop_reason) > 0 AS unseen
        FROM model_call
        WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index
            AND (accepted OR policy_stop_reason IS NOT NULL)
        ORDER BY step DESC LIMIT 1
    ) AS last ON true
""")


async def borne_out(conn: AsyncConnection, key: tuple[str, int], end: End, max_steps: int) -> End:
    """The end as the evidence bears it out; `rollout_error` with the reason as detail where it does not.

    An activity that was completed by hand leaves no row behind: its episode ends all the same, and is not counted.
    """
    values = {"rollout_key": key[0], "attempt_index": key[1]}
    found = (await conn.execute(_EVIDENCE, values)).mappings().one()
    facts, steps = end.facts, end.steps
    wrong = _of_the_end(facts, steps, found, max_steps) or _of_the_steps(steps, found)
    if wrong:
        facts = OutcomeFacts(
            evaluation_completed=facts.evaluation_completed,
            infrastructure_failure_reason=facts.infrastructure_failure_reason,
        )
        steps = min(max(steps, found["decided"] - 1, found["newest"]), found["decided"])
    elif classify(facts).runtime_eligible:
        wrong = _of_the_turns(steps, found)
    if not wrong:
        return end
    reason = facts.infrastructure_failure_reason or Infra.ROLLOUT_ERROR
    detail = f"the evidence does not bear out how it ended: {wrong}" + (f"; {end.detail}" if end.detail else "")
    masked = facts.model_copy(update={"infrastructure_failure_reason": reason})
    return replace(end, facts=masked, steps=steps, detail=detail[:2000])


def _of_the_end(facts: OutcomeFacts, steps: int, found: RowMapping, max_steps: int) -> str:
    ended = facts.terminal_action or facts.policy_stop_reason or facts.environment_done or facts.horizon_reached
    decided = (found["decided"], found["terminal_action"], found["policy_stop_reason"])
    if ended and decided != (steps, facts.terminal_action, facts.policy_stop_reason):
        return f"the last model call decided step {decided[0]}: {decided[1] or decided[2] or 'go on'}"
    if facts.horizon_reached and steps != max_steps:
        return f"{steps} steps are not the limit of {max_steps}"
    return ""


def _of_the_steps(steps: int, found: RowMapping) -> str:
    """An answer may have been committed and never have reached the run: one step more is decided then."""
    if not steps <= found["decided"] <= steps + 1:
        return f"{steps} steps were reported, the last model call decided step {found['decided']}"
    return f"step {found['newest']} was observed after {steps} steps" if found["newest"] > steps else ""


def _of_the_turns(steps: int, found: RowMapping) -> str:
    """The first observation and one per step, but for an end that acts no more."""
    due = steps + 1 - found["unseen"]
    if found["turns"] == due and found["newest"] <= steps - found["unseen"]:
        return ""
    return f"{found['turns']} of {due} observations are there"
