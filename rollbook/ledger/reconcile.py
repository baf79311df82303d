"""What reconciliation needs to know: quiet rows of one deployment, and how often their workflow was not found."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from rollbook.ledger.records import Suspect


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that has rows which are not final."""

    batch_id: str
    launch_id: str
    """The launch that its control belongs to."""
    stopping: bool
    cancelling: bool
    control_reason: str
    in_flight: int
    """Rows that are queued or running."""
    is_quiet: bool
    """Launched so long ago that a missing workflow means something."""
    first_key: str
    """Its first planned rollout: where it is noted that the batch's own workflow was missing."""


_SUSPECTS = text("""
    SELECT rollout_key, workflow_id, batch_id, state, attempt_index, run_id, since, coalesce(sighting.seen, 0) AS seen
    FROM (
        SELECT rollout.rollout_key, batch_id, state,
               CASE WHEN ended.attempt_index IS NULL THEN made.attempt_index END AS attempt_index,
               CASE WHEN made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL THEN made.run_id ELSE '' END
                   AS run_id,
               CASE WHEN made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL THEN made.workflow_id
                    ELSE rollout.rollout_key END AS workflow_id,
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

# A sighting from before the row was last queued, claimed, ended or asked for again says nothing about what it is now.
_ANEW = """(sighting.seen = 0 OR sighting.last_at < (
    SELECT greatest(planned_at, queued_at, made.claimed_at, ended.ended_at,
                    (SELECT max(requested_at) FROM rerun_request AS again
                     WHERE again.rollout_key = planned.rollout_key))
    FROM rollout AS planned
    LEFT JOIN attempt AS made ON made.rollout_key = planned.rollout_key AND made.attempt_index = current_attempt
    LEFT JOIN outcome AS ended ON ended.rollout_key = planned.rollout_key AND ended.attempt_index = current_attempt
    WHERE planned.rollout_key = sighting.rollout_key))"""
_TOO_SOON = "sighting.last_at > now() - make_interval(secs => :gap_s)"

_MISSING = text(f"""
    INSERT INTO sighting (rollout_key, run_id, seen) VALUES (:rollout_key, :run_id, 1)
    ON CONFLICT (rollout_key, run_id) DO UPDATE SET
        seen = CASE WHEN {_ANEW} THEN 1 WHEN {_TOO_SOON} THEN sighting.seen ELSE sighting.seen + 1 END,
        first_at = CASE WHEN {_ANEW} THEN now() ELSE sighting.first_at END,
        last_at = CASE WHEN {_TOO_SOON} AND NOT {_ANEW} THEN sighting.last_at ELSE now() END
    RETURNING seen
""")

_FOUND = text("UPDATE sighting SET seen = 0, last_at = now() WHERE rollout_key = :rollout_key AND run_id = :run_id")


async def suspects(
    conn: AsyncConnection, deployment_id: str, namespace: str, min_age_s: float, limit: int
) -> list[Suspect]:
    """Rows of this deployment and namespace that claim to be under way and were quiet for `min_age_s` seconds."""
    values = {"deployment_id": deployment_id, "namespace": namespace, "min_age_s": min_age_s, "limit": limit}
    return [Suspect(**row) for row in (await conn.execute(_SUSPECTS, values)).mappings()]


async def sighted_missing(conn: AsyncConnection, rollout_key: str, run_id: str, gap_s: float = 0.0) -> int:
    """What was asked for was not found; how many times in a row that is now.

    A look within `gap_s` seconds of the last one that counted adds nothing. What was noted before the row went on
    (queued, claimed, ended, asked for again) does not count any more.
    """
    values = {"rollout_key": rollout_key, "run_id": run_id, "gap_s": gap_s}
    return int((await conn.execute(_MISSING, values)).scalar_one())


async def sighted_alive(conn: AsyncConnection, rollout_key: str, run_id: str) -> None:
    """The workflow was found: earlier misses prove nothing any more."""
    await conn.execute(_FOUND, {"rollout_key": rollout_key, "run_id": run_id})


# Two questions, one per partial index: asked as state <> 'final' it would read every final row of the batch.
_OPEN_BATCHES = text("""
    SELECT batch_id, launch_id, stopping, cancelling, control_reason, flying.in_flight,
           coalesce((SELECT registered_at FROM registration
                     WHERE registration.batch_id = batch.batch_id AND registration.launch_id = batch.launch_id),
                    created_at) < now() - make_interval(secs => :min_age_s) AS is_quiet,
           (SELECT rollout_key FROM rollout WHERE rollout.batch_id = batch.batch_id ORDER BY plan_order LIMIT 1)
               AS first_key
    FROM batch CROSS JOIN LATERAL (
        SELECT count(*) AS in_flight FROM rollout
        WHERE rollout.batch_id = batch.batch_id AND state IN ('queued', 'running')) AS flying
    WHERE deployment_id = :deployment_id AND namespace = :namespace
        AND (flying.in_flight > 0
             OR EXISTS (SELECT FROM rollout WHERE rollout.batch_id = batch.batch_id AND state = 'waiting'))
    ORDER BY batch_id
""")

_OPEN_RUNS = text("""
    SELECT made.rollout_key, made.run_id
    FROM rollout
    JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
    WHERE batch_id = :batch_id AND state = 'running'
        AND NOT EXISTS (SELECT FROM outcome WHERE outcome.rollout_key = made.rollout_key
                        AND outcome.attempt_index = made.attempt_index)
    ORDER BY made.rollout_key
""")

_ENDED = text("""
    SELECT rollout.rollout_key
    FROM rollout JOIN batch USING (batch_id)
    JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = current_attempt
    WHERE deployment_id = :deployment_id AND namespace = :namespace AND state = 'final'
        AND rollout.rollout_key = ANY(:keys) AND ended_at < now() - make_interval(secs => :min_age_s)
    ORDER BY rollout.rollout_key
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))


async def open_batches(
    conn: AsyncConnection, deployment_id: str, namespace: str, min_age_s: float = 0.0
) -> list[OpenBatch]:
    """Batches of this deployment and namespace that still have rows which are not final, in whatever state."""
    values = {"deployment_id": deployment_id, "namespace": namespace, "min_age_s": min_age_s}
    return [OpenBatch(**row) for row in (await conn.execute(_OPEN_BATCHES, values)).mappings()]


async def open_runs(conn: AsyncConnection, batch_id: str) -> list[tuple[str, str]]:
    """Rollout and run of every open attempt of a batch."""
    return [(key, run_id) for key, run_id in await conn.execute(_OPEN_RUNS, {"batch_id": batch_id})]


async def long_final(
    conn: AsyncConnection, deployment_id: str, namespace: str, keys: Iterable[str], min_age_s: float
) -> list[str]:
    """Those of `keys` that are ours and have been final for `min_age_s` seconds."""
    values = {"deployment_id": deployment_id, "namespace": namespace, "keys": list(keys), "min_age_s": min_age_s}
    return list((await conn.execute(_ENDED, values)).scalars())
