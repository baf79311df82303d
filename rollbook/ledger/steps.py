"""One look before a step: the fence, the attempt, and what is committed already. The hot path of every episode."""

from collections import OrderedDict

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.episode import AttemptRef
from rollbook.ledger.commits import turn
from rollbook.ledger.fence import attempt_context, check_owner
from rollbook.ledger.records import AttemptContext, StepSoFar, StoredCall

_CALL = tuple(StoredCall.__slots__)

_SO_FAR = text(f"""
    SELECT made.run_id, ended.termination_reason, turn.step IS NOT NULL AS acted, call.*
    FROM attempt AS made
    LEFT JOIN outcome AS ended ON ended.rollout_key = made.rollout_key AND ended.attempt_index = made.attempt_index
    LEFT JOIN turn ON turn.rollout_key = made.rollout_key AND turn.attempt_index = made.attempt_index
        AND turn.step = :step
    LEFT JOIN LATERAL (
        SELECT {", ".join(_CALL)} FROM model_call
        WHERE rollout_key = made.rollout_key AND attempt_index = made.attempt_index AND step = :step
            AND (accepted OR policy_stop_reason IS NOT NULL)
        ORDER BY parse_attempt DESC LIMIT 1
    ) AS call ON true
    WHERE made.rollout_key = :rollout_key AND made.attempt_index = :attempt_index
""")


class Contexts:
    """Contexts of attempts that were read before: nothing in them ever changes. The fence is not among it."""

    def __init__(self, size: int = 512) -> None:
        self._size = size
        self._known: OrderedDict[tuple[str, int, str], AttemptContext] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str) -> AttemptContext:
        """The context of a run's own attempt; raises Fenced when it has to be read and is not the run's own."""
        key = (attempt.rollout_key, attempt.attempt_index, run_id)
        if key not in self._known:
            self._known[key] = await attempt_context(conn, attempt, run_id)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return self._known[key]


async def so_far(conn: AsyncConnection, contexts: Contexts, attempt: AttemptRef, run_id: str, step: int) -> StepSoFar:
    """What is known of a step; raises Fenced unless the attempt is open and the run's own.

    Needs no transaction: the commit that follows proves the fence again, under the lock.
    """
    context = await contexts.get(conn, attempt, run_id)
    found = (await conn.execute(_SO_FAR, attempt.model_dump() | {"step": step})).mappings().first()
    check_owner(attempt, run_id, found)
    assert found is not None
    return StepSoFar(
        context=context,
        call=None if found["step"] is None else StoredCall(**{name: found[name] for name in _CALL}),
        turn=await turn(conn, attempt, step) if found["acted"] else None,
    )
