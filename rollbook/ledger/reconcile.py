"""What reconciliation needs to know: quiet rows of one deployment, and how often their workflow was not found."""

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from rollbook.ledger.records import Suspect

_SUSPECTS = text("""
    SELECT rollout_key, batch_id, state, attempt_index, run_id, since, coalesce(sighting.seen, 0) AS seen
    FROM (
        SELECT rollout.rollout_key, batch_id, state,
               CASE WHEN ended.attempt_index IS NULL THEN made.attempt_index END AS attempt_index,
               CASE WHEN made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL THEN made.run_id ELSE '' END
                   AS run_id,
               greatest(queued_at, made.claimed_at, ended.ended_at) AS since
        FROM rollout JOIN batch USING (batch_id)
        LEFT JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
        LEFT JOIN outcome AS ended ON ended.rollout_key = rollout.rollout_key
            AND ended.attempt_index = current_attempt
        WHERE deployment_id = :deployment_id AND namespace = :namespace AND state IN ('queued', 'running')
    ) AS quiet
    LEFT JOIN sighting USING (rollout_key, run_id)
    WHERE since < now() - make_interval(secs => :min_age_s)
    ORDER BY since
    LIMIT :limit
""")

_MISSING = text("""
    INSERT INTO sighting (rollout_key, run_id, seen) VALUES (:rollout_key, :run_id, 1)
    ON CONFLICT (rollout_key, run_id) DO UPDATE SET
        seen = sighting.seen + 1,
        first_at = CASE WHEN sighting.seen = 0 THEN now() ELSE sighting.first_at END,
        last_at = now()
    RETURNING seen
""")

_FOUND = text("UPDATE sighting SET seen = 0, last_at = now() WHERE rollout_key = :rollout_key AND run_id = :run_id")


async def suspects(
    conn: AsyncConnection, deployment_id: str, namespace: str, min_age_s: float, limit: int
) -> list[Suspect]:
    """Rows of this deployment and namespace that claim to be under way and were quiet for `min_age_s` seconds."""
    values = {"deployment_id": deployment_id, "namespace": namespace, "min_age_s": min_age_s, "limit": limit}
    return [Suspect(**row) for row in (await conn.execute(_SUSPECTS, values)).mappings()]


async def sighted_missing(conn: AsyncConnection, rollout_key: str, run_id: str) -> int:
    """The workflow was asked for and not found; how many times in a row that is now."""
    return int((await conn.execute(_MISSING, {"rollout_key": rollout_key, "run_id": run_id})).scalar_one())


async def sighted_alive(conn: AsyncConnection, rollout_key: str, run_id: str) -> None:
    """The workflow was found: earlier misses prove nothing any more."""
    await conn.execute(_FOUND, {"rollout_key": rollout_key, "run_id": run_id})


_OPEN_BATCHES = text("""
    SELECT batch_id FROM batch
    WHERE deployment_id = :deployment_id AND namespace = :namespace AND NOT stopping AND NOT cancelling
        AND EXISTS (SELECT FROM rollout WHERE rollout.batch_id = batch.batch_id AND state <> 'final')
    ORDER BY batch_id
""")

_ENDED = text("""
    SELECT rollout.rollout_key
    FROM rollout JOIN batch USING (batch_id)
    JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = current_attempt
    WHERE deployment_id = :deployment_id AND namespace = :namespace AND state = 'final'
        AND rollout.rollout_key = ANY(:keys) AND ended_at < now() - make_interval(secs => :min_age_s)
    ORDER BY rollout.rollout_key
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))


async def open_batches(conn: AsyncConnection, deployment_id: str, namespace: str) -> list[str]:
    """Batches of this deployment and namespace that still have rows to run and were not told to stop."""
    values = {"deployment_id": deployment_id, "namespace": namespace}
    return list((await conn.execute(_OPEN_BATCHES, values)).scalars())


async def long_final(
    conn: AsyncConnection, deployment_id: str, namespace: str, keys: list[str], min_age_s: float
) -> list[str]:
    """Those of `keys` that are ours and have been final for `min_age_s` seconds."""
    values = {"deployment_id": deployment_id, "namespace": namespace, "keys": keys, "min_age_s": min_age_s}
    return list((await conn.execute(_ENDED, values)).scalars())
