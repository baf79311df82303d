"""What the pump needs: rows to start, rows under way. Everything is answered from partial indexes."""

from collections.abc import Iterable

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from rollbook.ledger import tables
from rollbook.ledger.identity import POLICY_NAME_SQL
from rollbook.ledger.records import StartRow

_COLUMNS = f"rollout_key, batch_id, domain, task_id, sample, {POLICY_NAME_SQL} AS policy"

_STARTABLE = text(f"""
    SELECT {_COLUMNS}
    FROM batch JOIN rollout USING (batch_id)
    WHERE batch_id = :batch_id AND state = 'waiting'
        AND NOT (paused OR stopping OR cancelling)
    ORDER BY plan_order
    LIMIT least(:limit, greatest(0, (SELECT concurrency FROM batch WHERE batch_id = :batch_id)
        - (SELECT count(*) FROM rollout WHERE batch_id = :batch_id AND state IN ('queued', 'running'))))
""")

_STALE = text(f"""
    SELECT {_COLUMNS}
    FROM batch JOIN rollout USING (batch_id)
    WHERE batch_id = :batch_id AND state = 'queued' AND NOT cancelling
        AND queued_at < now() - make_interval(secs => :older_than_s)
    ORDER BY queued_at
    LIMIT :limit
""")

_MARK = text("""
    UPDATE rollout SET state = 'queued', queued_at = now()
    WHERE rollout_key IN (
        SELECT rollout_key FROM rollout JOIN batch USING (batch_id)
        WHERE rollout_key = ANY(:keys) AND state = ANY(:states)
            AND (state = 'queued' OR NOT (stopping OR cancelling))
        ORDER BY rollout_key FOR NO KEY UPDATE OF rollout)
        AND state = ANY(:states)
    RETURNING rollout_key
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)), bindparam("states", type_=ARRAY(TEXT)))


async def startable(conn: AsyncConnection, batch_id: str, limit: int) -> list[StartRow]:
    """Waiting rows in plan order, no more than the free window; none while paused or stopping."""
    rows = await conn.execute(_STARTABLE, {"batch_id": batch_id, "limit": limit})
    return [StartRow(**row) for row in rows.mappings()]


async def stale_queued(conn: AsyncConnection, batch_id: str, older_than_s: float, limit: int) -> list[StartRow]:
    """Rows that were queued a while ago and never claimed: to be started again (which is harmless).

    Also while the batch is stopping: the claim then puts the row back to waiting, and the stop has an end.
    """
    rows = await conn.execute(_STALE, {"batch_id": batch_id, "older_than_s": older_than_s, "limit": limit})
    return [StartRow(**row) for row in rows.mappings()]


async def mark_queued(conn: AsyncConnection, keys: Iterable[str], *, again: bool = False) -> list[str]:
    """waiting → queued, after the Episode was started; rows that went on meanwhile are left alone.

    So are waiting rows of a batch that is stopping: a refused claim has put them back, and nobody comes for them.

    `again` renews the time of rows that are queued already. Returns the keys that changed.
    """
    states = ["waiting", "queued"] if again else ["waiting"]
    rows = await conn.execute(_MARK, {"keys": list(keys), "states": states})
    return list(rows.scalars())


async def in_flight(conn: AsyncConnection, batch_id: str) -> list[str]:
    """Keys of the rows that are queued or running: the episodes a cancel must reach."""
    row = tables.rollout
    query = (
        select(row.c.rollout_key)
        .where(row.c.batch_id == batch_id, row.c.state.in_(("queued", "running")))
        .order_by(row.c.rollout_key)
    )
    return list((await conn.scalars(query)).all())
