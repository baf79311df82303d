"""What people ask the ledger: batches, roll calls, single rollouts. Reads only."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from models.batch import Counts
from models.task import domain_rank
from rollbook.errors import InvalidInput
from rollbook.ledger.control import counts
from rollbook.ledger.engine import create_engine, transaction
from rollbook.ledger.selection import Member, Planned

_CANDIDATES = 10

_BATCH = """
    SELECT batch.*, launch.launch_index, launch.spec, launch.set_digest, launch.registered_at,
           coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy
    FROM batch LEFT JOIN LATERAL (
        SELECT * FROM registration WHERE registration.batch_id = batch.batch_id ORDER BY launch_index DESC LIMIT 1
    ) AS launch ON true
"""
_ONE_BATCH = text(f"{_BATCH} WHERE batch.batch_id = :batch_id")
_NEWEST_BATCHES = text(f"{_BATCH} ORDER BY batch.created_at DESC LIMIT :limit")
_BATCH_IDS = text("SELECT batch_id FROM batch ORDER BY created_at DESC LIMIT 500")

_DOMAINS = text("""
    SELECT domain, planned, waiting, running, admitted, masked FROM rollcall
    WHERE batch_id = :batch_id AND domain <> '(all)'
""")

_MASKED = text("""
    SELECT admission_reason AS reason, count(*) AS rollouts FROM rollout_result WHERE batch_id = :batch_id AND masked
    GROUP BY admission_reason ORDER BY rollouts DESC, admission_reason
""")

_PACE = text("""
    SELECT count(*) AS ended, extract(epoch FROM now() - :since) AS seconds
    FROM rollout_result WHERE batch_id = :batch_id AND state = 'final' AND ended_at >= :since
""")

_RUNNING = text("""
    SELECT rollout.rollout_key, rollout.state, current_attempt AS attempt, attempt.claimed_at, sandbox.view_url,
           (SELECT max(step) FROM turn WHERE turn.rollout_key = rollout.rollout_key
                AND turn.attempt_index = current_attempt) AS step
    FROM rollout
    LEFT JOIN attempt ON attempt.rollout_key = rollout.rollout_key AND attempt.attempt_index = current_attempt
    LEFT JOIN sandbox ON sandbox.rollout_key = rollout.rollout_key AND sandbox.attempt_index = current_attempt
        AND sandbox.state = 'running'
    WHERE batch_id = :batch_id AND rollout.state IN ('queued', 'running')
    ORDER BY attempt.claimed_at NULLS LAST, plan_order LIMIT :limit
""")

_ROLLOUTS = text("""
    SELECT rollout_key, domain, task_id, sample, state, attempts, selected_attempt, admitted, masked,
           admission_reason, termination_reason, score, reward, steps, detail
    FROM rollout_result WHERE batch_id = :batch_id ORDER BY plan_order
""")

_FIND = text("""
    SELECT rollout_key FROM rollout
    WHERE rollout_key = :given
       OR left(rollout_key, length(:given)) = :given OR right(rollout_key, length(:given)) = :given
    ORDER BY rollout_key = :given DESC, planned_at DESC, rollout_key LIMIT :limit
""")

_LAST_SCREENS = text("""
    SELECT DISTINCT ON (rollout_key) rollout_key, screenshot_sha256
    FROM turn JOIN rollout USING (rollout_key)
    WHERE batch_id = :batch_id AND turn.attempt_index = coalesce(selected_attempt, current_attempt)
        AND screenshot_sha256 IS NOT NULL
    ORDER BY rollout_key, step DESC
""")

_ROLLOUT = text("""
    SELECT result.*, task.document ->> 'instruction' AS instruction, batch.contract -> 'limits' -> 'max_steps' AS max_steps
    FROM rollout_result AS result JOIN task USING (task_digest) JOIN batch USING (batch_id)
    WHERE rollout_key = :key
""")
_ATTEMPTS = text("""
    SELECT attempt.attempt_index, run_id, execution_id, trajectory_rollout_id, claimed_at, ended_at, termination_reason,
           closed_by, outcome.steps, outcome.detail, outcome.score, outcome.reward, outcome.guest_failed,
           evaluation.completed AS evaluated, evaluation.score AS evaluator_score, evaluation.score_type,
           evaluation.reason AS evaluation_reason, evaluation.detail AS evaluation_detail,
           evaluator_revision, numpy_version, log_sha256, evaluation.duration_s AS evaluation_s,
           provider, sandbox_id, sandbox.state AS sandbox_state, sandbox.isolation, view_url
    FROM attempt
    LEFT JOIN outcome USING (rollout_key, attempt_index)
    LEFT JOIN evaluation USING (rollout_key, attempt_index)
    LEFT JOIN sandbox USING (rollout_key, attempt_index)
    WHERE rollout_key = :key ORDER BY attempt_index
""")
_DECISIONS = text("""
    SELECT attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by, decided_at
    FROM admission WHERE rollout_key = :key ORDER BY decided_at, attempt_index, scope, decision_index
""")
_RERUNS = text("""
    SELECT after_attempt, supersede, reason, requested_by, requested_at
    FROM rerun_request WHERE rollout_key = :key ORDER BY request
""")
_STEPS = text("""
    SELECT step, call.summary, call.actions, call.terminal_action, call.policy_stop_reason, call.parse_error,
           call.model_name, call.latency_s, call.prompt_sha256, call.response_sha256, turn.actions AS done,
           turn.in_doubt, turn.raised, turn.screenshot_sha256, turn.accessibility_tree_sha256, turn.ended_at
    FROM (SELECT * FROM turn WHERE rollout_key = :key AND attempt_index = :attempt) AS turn
    FULL JOIN (SELECT DISTINCT ON (step) * FROM model_call WHERE rollout_key = :key AND attempt_index = :attempt
               ORDER BY step, parse_attempt DESC) AS call USING (step)
    ORDER BY step
""")
_TIMELINE = text("""
    SELECT at, attempt_index, event, step, detail FROM episode_timeline WHERE rollout_key = :key ORDER BY at, step
""")

_SCOREBOARD = text("SELECT * FROM scoreboard WHERE batch_id = :batch_id ORDER BY domain_rank(domain), domain")
_PASS_K = text("SELECT * FROM pass_k WHERE batch_id = :batch_id ORDER BY k")
_SPREAD = text("SELECT * FROM sample_spread WHERE batch_id = :batch_id")

_TASK_SETS = text("""
    SELECT DISTINCT ON (name) name, set_digest, task_count, registered_at,
           (SELECT string_agg(DISTINCT domain, ', ') FROM task_set_member AS member
            WHERE member.set_digest = task_set.set_digest) AS domains
    FROM task_set ORDER BY name, registration DESC
""")
_SCRIPTS = text("""
    SELECT DISTINCT ON (name) name, script_digest, registered_at,
           (SELECT count(*) FROM policy_script AS script, json_object_keys(script.body -> 'tasks')
            WHERE script.script_digest = named.script_digest) AS tasks
    FROM policy_script_name AS named ORDER BY name, registration DESC
""")

_MEMBERS = text("SELECT domain, task_id, task_digest FROM task_set_member WHERE set_digest = :set_digest")
_PLANNED = text("""
    SELECT domain, task_id, task_digest, count(*) FROM rollout WHERE batch_id = :batch_id
    GROUP BY domain, task_id, task_digest
""")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch, its control and its newest launch."""

    batch_id: str
    deployment_id: str
    namespace: str
    contract: dict[str, Any]
    contract_digest: str
    policy: str
    paused: bool
    frozen: bool
    stopping: bool
    cancelling: bool
    control_reason: str
    concurrency: int
    max_attempts: int
    created_at: datetime
    closed_at: datetime | None
    launch_id: str
    launch_index: int | None
    """None between the first statement of a registration and its end."""
    spec: dict[str, Any] | None
    """The newest launch's spec."""
    set_digest: str | None
    registered_at: datetime | None


class Reader:
    """Read-only access, one short transaction per question."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def connect(cls, url: str) -> "Reader":
        """A reader of the ledger at `url`."""
        return cls(create_engine(url, pool_size=2))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    async def batch(self, batch_id: str) -> BatchRow:
        """One batch; raises InvalidInput that says which are similar."""
        if found := await self.known_batch(batch_id):
            return found
        known = [row["batch_id"] for row in await self._rows(_BATCH_IDS)]
        close = get_close_matches(batch_id, known, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(close)}?" if close else "; `rollbook status` lists them"
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}{hint}")

    async def known_batch(self, batch_id: str) -> BatchRow | None:
        """One batch, None if there is none of that id."""
        found = await self._rows(_ONE_BATCH, batch_id=batch_id)
        return _batch_row(found[0]) if found else None

    async def batches(self, limit: int = 20) -> list[BatchRow]:
        """The newest batches."""
        return [_batch_row(row) for row in await self._rows(_NEWEST_BATCHES, limit=limit)]

    async def counts(self, batch_id: str) -> Counts:
        """The roll call in numbers."""
        async with self._reading() as conn:
            return await counts(conn, batch_id)

    async def domains(self, batch_id: str) -> list[Row]:
        """The roll call by domain, in OSWorld's order."""
        return sorted(await self._rows(_DOMAINS, batch_id=batch_id), key=lambda row: domain_rank(row["domain"]))

    async def masked(self, batch_id: str) -> list[Row]:
        """Why rollouts are masked: reason and number, most frequent first."""
        return await self._rows(_MASKED, batch_id=batch_id)

    async def pace(self, batch_id: str, since: datetime) -> tuple[int, float]:
        """(rollouts that ended, seconds that passed) since a time."""
        row = (await self._rows(_PACE, batch_id=batch_id, since=since))[0]
        return row["ended"], float(row["seconds"])

    async def running(self, batch_id: str, limit: int = 20) -> list[Row]:
        """Rollouts under way, the longest first."""
        return await self._rows(_RUNNING, batch_id=batch_id, limit=limit)

    async def rollouts(self, batch_id: str) -> list[Row]:
        """Every rollout of a batch with its selected outcome, in the order of the plan."""
        return await self._rows(_ROLLOUTS, batch_id=batch_id)

    async def last_screens(self, batch_id: str) -> dict[str, str]:
        """Rollout → digest of the latest screenshot of its selected (else current) attempt."""
        rows = await self._rows(_LAST_SCREENS, batch_id=batch_id)
        return {row["rollout_key"]: row["screenshot_sha256"] for row in rows}

    async def find_rollout(self, given: str) -> str:
        """The one rollout whose key is, begins or ends with `given`; raises InvalidInput that lists candidates."""
        found = [row["rollout_key"] for row in await self._rows(_FIND, given=given, limit=_CANDIDATES + 1)]
        if not given or not found:
            raise InvalidInput(f"rollout: no key is, begins or ends with {given!r}; `rollbook report BATCH --rollouts`")
        if found[0] == given or len(found) == 1:
            return str(found[0])
        more = " …" if len(found) > _CANDIDATES else ""
        raise InvalidInput(f"rollout: {given!r} fits several: {', '.join(found[:_CANDIDATES])}{more}")

    async def task_sets(self) -> list[Row]:
        """Registered task sets, the newest registration of each name."""
        return await self._rows(_TASK_SETS)

    async def scripts(self) -> list[Row]:
        """Registered scripts, the newest registration of each name."""
        return await self._rows(_SCRIPTS)

    async def members(self, set_digest: str) -> list[Member]:
        """The tasks of a set."""
        return [Member(**row) for row in await self._rows(_MEMBERS, set_digest=set_digest)]

    async def planned(self, batch_id: str) -> list[Planned]:
        """The tasks of a batch as they are planned."""
        async with self._reading() as conn:
            return [Planned(*row) for row in await conn.execute(_PLANNED, {"batch_id": batch_id})]

    async def rollout(self, key: str) -> Row:
        """One rollout with its attempts, decisions, rerun requests and timeline."""
        found = await self._rows(_ROLLOUT, key=key)
        if not found:
            raise InvalidInput(f"rollout: the ledger has no rollout {key!r}")
        return found[0] | {
            "attempts": await self._rows(_ATTEMPTS, key=key),
            "decisions": await self._rows(_DECISIONS, key=key),
            "reruns": await self._rows(_RERUNS, key=key),
            "timeline": await self._rows(_TIMELINE, key=key),
        }

    async def steps(self, key: str, attempt: int) -> list[Row]:
        """What was decided, done and seen in each step of an attempt."""
        return await self._rows(_STEPS, key=key, attempt=attempt)

    async def scoreboard(self, batch_id: str) -> list[Row]:
        """Scores by domain and in all, over both denominators."""
        return await self._rows(_SCOREBOARD, batch_id=batch_id)

    async def pass_k(self, batch_id: str) -> list[Row]:
        """pass@k and pass^k."""
        return await self._rows(_PASS_K, batch_id=batch_id)

    async def spread(self, batch_id: str) -> Row | None:
        """Run-to-run spread over the sample indexes."""
        found = await self._rows(_SPREAD, batch_id=batch_id)
        return found[0] if found else None

    async def _rows(self, query: TextClause, **values: Any) -> list[Row]:
        async with self._reading() as conn:
            return [dict(row) for row in (await conn.execute(query, values)).mappings()]

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with transaction(self._engine) as conn:
            await conn.execute(text("SET TRANSACTION READ ONLY"))
            yield conn


def _batch_row(row: Row) -> BatchRow:
    return BatchRow(**_only(row, BatchRow.__slots__))


def _only(row: Row, names: Iterable[str]) -> Row:
    return {name: row[name] for name in names}
