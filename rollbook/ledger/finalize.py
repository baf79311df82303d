"""Finalize: the episode's own end of its attempt. The score is the evaluation row's, never the request's."""

from dataclasses import replace
from typing import Any

from sqlalchemy import RowMapping, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.episode import Finalized, FinalizeRequest
from rollbook.errors import Fenced, LedgerConflict
from rollbook.ledger import tables
from rollbook.ledger.borne_out import borne_out
from rollbook.ledger.ending import End, decide, read_batch, record_end
from rollbook.ledger.fence import lock_rollout, read_contract
from rollbook.ledger.sanitize import redact_text

_COMPARED = (
    "evaluation_completed",
    "infrastructure_failure_reason",
    "terminal_action",
    "environment_done",
    "horizon_reached",
    "policy_stop_reason",
    "guest_failed",
    "steps",
    "detail",
    "score",
)


async def finalize(conn: AsyncConnection, request: FinalizeRequest, run_id: str) -> Finalized:
    """End an attempt. Repeating the same request returns the same answer.

    An end that the evidence does not bear out is recorded as `rollout_error`, masked: refusing it would help nobody.
    Raises Fenced if the attempt is another run's or was ended from outside, LedgerConflict if it ended otherwise.
    """
    row = await lock_rollout(conn, request.attempt.rollout_key)
    key = (request.attempt.rollout_key, request.attempt.attempt_index)
    attempt = await _row(conn, tables.attempt, key)
    name = f"attempt {key[1]} of {key[0]}"
    if attempt is None or attempt["run_id"] != run_id:
        raise Fenced(f"{name} is not run {run_id}'s")
    end = _interpret(request, await _row(conn, tables.evaluation, key))
    batch = await read_batch(conn, row["batch_id"])
    contract = read_contract(row["batch_id"], batch["contract"])
    proven = await borne_out(conn, key, end, contract.limits.max_steps)
    if known := await _row(conn, tables.outcome, key):
        _require_same(name, known, end, proven)
        return await _answer(conn, key)
    end = await decide(conn, row, batch, key[1], proven)
    await record_end(conn, row, batch, key[1], end)
    values: dict[str, Any] = {"state": end.next_state} | ({"selected_attempt": key[1]} if end.selected else {})
    await conn.execute(tables.rollout.update().where(tables.rollout.c.rollout_key == key[0]).values(values))
    return await _answer(conn, key)


def _interpret(request: FinalizeRequest, evaluation: RowMapping | None) -> End:
    """Evaluated is what the committed evaluation says, whatever the request does: its answer may have been lost."""
    completed = evaluation is not None and evaluation["completed"]
    guest_failed = request.guest_failed or (evaluation is not None and evaluation["guest_failed"])
    facts = request.facts.model_copy(update={"evaluation_completed": completed})
    return End(
        facts=facts,
        closed_by="episode",
        score=evaluation["score"] if completed and evaluation is not None else None,
        steps=request.steps,
        guest_failed=guest_failed and not completed,
        detail=redact_text(request.detail)[:2000],
    )


def _require_same(name: str, known: RowMapping, end: End, proven: End) -> None:
    """The end as it was reported, as the evidence bore it out, or as versions before revision 0007 recorded it."""
    if known["closed_by"] != "episode":
        raise Fenced(f"{name} was ended from outside ({known['termination_reason']})")
    silent = replace(end, facts=end.facts.model_copy(update={"evaluation_completed": False}), score=None)
    different = [_differences(known, one) for one in (end, proven, silent)]
    if all(different):
        raise LedgerConflict(f"{name} ended already, with other facts ({'; '.join(different[0])})")


def _differences(known: RowMapping, end: End) -> list[str]:
    said = end.facts.model_dump() | {
        "guest_failed": end.guest_failed,
        "steps": end.steps,
        "detail": end.detail,
        "score": end.score,
    }
    return [f"{field}: {known[field]!r} -> {said[field]!r}" for field in _COMPARED if known[field] != said[field]]


async def _row(conn: AsyncConnection, table: Any, key: tuple[str, int]) -> RowMapping | None:
    query = select(table).where(table.c.rollout_key == key[0], table.c.attempt_index == key[1])
    return (await conn.execute(query)).mappings().first()


async def _answer(conn: AsyncConnection, key: tuple[str, int]) -> Finalized:
    known = await _row(conn, tables.outcome, key)
    assert known is not None
    return Finalized(
        termination_reason=known["termination_reason"],
        admitted=known["runtime_eligible"],
        score=known["score"],
        reward=known["reward"],
        another_attempt=known["next_state"] == "running",
        selected=known["selected"],
    )
