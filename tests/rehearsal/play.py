"""The rehearsal itself: run, kill, run on; relaunch; extend; rerun. After each act the roll call must add up."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from models.batch import BatchResult
from models.contract import Resolved
from models.spec import contract_of, read_spec
from models.task import Task
from rollbook.desktop.driver import Files, Job
from rollbook.sandboxes.null import NullDriver
from tests.support.system import null_spec
from tests.support.world import Victim, World

SEED = 7
TASK_SET = "rehearsal"
VICTIMS: tuple[Victim, ...] = ("worker", "temporal", "postgres")
SCRIPT = "rehearsal"
MAX_STEPS = 4
ENDINGS: list[tuple[str, list[dict[str, Any]]]] = [
    ("agent_done", [{"actions": ["DONE"]}]),
    ("agent_done", [{"actions": ["pyautogui.click(1, 1)", "WAIT"]}, {"actions": ["DONE"]}]),
    ("agent_fail", [{"actions": []}, {"actions": ["pyautogui.press('a')", "FAIL"]}]),
    ("max_steps", [{"actions": ["WAIT"]}]),
    ("model_response_unparseable", [{"actions": ["WAIT"]}, {"stop": "model_response_unparseable"}]),
]
"""The policy's behaviour, task by task in turn, and the resulting ending of an evaluated episode."""
OF_CRASHES = {"action_timeout", "evaluation_interrupted", "model_call_failed", "sandbox_lost", "setup_interrupted"}
"""Endings that a crash may bring on: facts of the crash, never a score."""


class Rehearsal:
    """One batch over `tasks` in a world, in four acts; `say` prints a line."""

    def __init__(
        self,
        world: World,
        tasks: list[Task],
        say: Callable[[str], None],
        *,
        concurrency: int = 16,
        patience_s: float = 1800,
    ) -> None:
        self._world = world
        self._say = say
        self._tasks = tasks
        self._patience_s = patience_s
        self._endings = {task.task_id: ENDINGS[number % len(ENDINGS)] for number, task in enumerate(tasks)}
        self.batch_id = f"rehearsal-{len(tasks)}"
        self._spec = null_spec(
            TASK_SET,
            seed=SEED,
            concurrency=concurrency,
            policy={"kind": "scripted", "script": SCRIPT},
            limits={"max_steps": MAX_STEPS},
        )

    async def play(self, kills: int) -> None:
        """All acts; raises AssertionError where a rollout is missing, duplicate or wrongly scored."""
        planned = len(self._tasks)
        await self._world.system.ledger.register_task_set(TASK_SET, self._tasks)
        await self._world.system.register_script(SCRIPT, self._script())
        await self._act("first run, servers killed in turn", planned, "complete", kills=kills)
        await self._act("relaunch", planned, "already complete")
        await self._act("extended to two samples", 2 * planned, "complete", kills=kills // 2, samples=2, extend=True)
        again = await self._rerun()
        await self._act(f"{again} masked ones rerun", 2 * planned, "complete", samples=2)

    def _script(self) -> dict[str, Any]:
        return {"schema_version": 1, "tasks": {task: {"steps": steps} for task, (_, steps) in self._endings.items()}}

    async def _act(self, title: str, planned: int, state: str, *, kills: int = 0, **changes: Any) -> None:
        began, before = time.monotonic(), len(self._world.kills)
        result = await self._launch(planned, kills, self._spec | changes)
        assert result.state == state, f"{title}: the batch is {result.state}, not {state}"
        await self._all_present(title, planned, changes.get("samples", 1))
        killed = Counter(self._world.kills[before:])
        suffix = f"; killed: {', '.join(f'{name} {number}x' for name, number in killed.items())}" if killed else ""
        self._say(f"{title}: {time.monotonic() - began:.0f} s{suffix}")
        await self._say_roll_call(planned)

    async def _launch(self, planned: int, kills: int, spec: Mapping[str, Any]) -> BatchResult:
        handle = await self._world.system.start_batch(dict(spec), self.batch_id)
        killing = asyncio.create_task(self._kill_in_turn(planned, kills))
        try:
            return await self._world.result(handle, self._patience_s)
        finally:
            killing.cancel()
            done = await asyncio.gather(killing, return_exceptions=True)
            if isinstance(done[0], Exception):
                raise done[0]

    async def _kill_in_turn(self, planned: int, kills: int) -> None:
        """One crash whenever another share of the rollouts that are open now has ended."""
        open_now = planned - self._final(await self._world.counts(self.batch_id))
        for number in range(kills):
            due = planned - open_now + open_now * (number + 0.5) / kills
            while self._final(await self._world.counts(self.batch_id)) < due:  # noqa: ASYNC110 - it is in Postgres
                await asyncio.sleep(0.1)
            # shielded: a victim that was killed is started again, also when the batch ends meanwhile
            await asyncio.shield(self._world.kill(VICTIMS[number % len(VICTIMS)]))

    @staticmethod
    def _final(counts: Any) -> int:
        return int(counts.admitted + counts.masked)

    async def _all_present(self, title: str, planned: int, samples: int) -> None:
        """No rollout missing or duplicate, every score as drawn, and the audit agrees."""
        names = await self._world.rows(
            "SELECT domain, task_id, sample, count(*) AS times FROM rollout_result WHERE batch_id = :id"
            " AND (admitted OR masked) GROUP BY domain, task_id, sample",
            id=self.batch_id,
        )
        called = {(row["domain"], row["task_id"], row["sample"]) for row in names}
        expected = {(task.domain, task.task_id, sample) for task in self._tasks for sample in range(samples)}
        assert called == expected, f"{title}: {len(expected - called)} missing, {len(called - expected)} unknown"
        assert all(row["times"] == 1 for row in names), f"{title}: called twice"
        await self._ends_are_as_drawn(title)
        report = await self._world.system.audit(self.batch_id)
        assert report.ok, f"{title}: {report.findings[:5]}"
        assert (report.planned, report.final) == (planned, planned), title

    async def _ends_are_as_drawn(self, title: str) -> None:
        """Every end that was scored has the drawn score and the script's ending; every other one the drawn reason."""
        rows = await self._world.rows(
            "SELECT rollout_key, task_id, attempt_index, termination_reason, runtime_eligible, o.score, closed_by"
            " FROM rollout JOIN outcome o USING (rollout_key) WHERE batch_id = :id",
            id=self.batch_id,
        )
        for row in rows:
            drawn = await self._drawn(row["rollout_key"], row["attempt_index"])
            said = row["score"] if row["runtime_eligible"] else row["termination_reason"]
            excused = not row["runtime_eligible"] and said in OF_CRASHES
            assert said == drawn or excused, f"{title}: {row} should have ended as {drawn}"
            if row["runtime_eligible"]:
                assert row["termination_reason"] == self._endings[row["task_id"]][0], f"{title}: {row}"

    async def _drawn(self, rollout_key: str, attempt_index: int) -> float | str:
        """The do-nothing desktop's end of this attempt: its score, or the reason for its absence."""
        driver = NullDriver(rollout_key, attempt_index)
        contract = contract_of(
            read_spec({"task_set": "rehearsal", "policy": {"kind": "noop"}, "seed": SEED}), Resolved()
        )
        job = Job(task={}, contract=contract, work_dir=self._world.system.settings.state_dir, timeout_s=1, token="")
        try:
            await driver.prepare(job, self._quiet, self._keep)
            await driver.postconfig(job, self._quiet, self._keep)
        except Exception as error:
            return str(getattr(error, "reason", "?"))
        scored = await driver.evaluate(job, None, self._quiet)
        return scored.score if scored.score is not None else str(scored.reason)

    @staticmethod
    def _quiet(note: str) -> None:
        return None

    @staticmethod
    async def _keep(files: dict[str, bytes]) -> Files:
        return {}

    async def _rerun(self) -> int:
        keys = await self._world.system.ledger.request_rerun(
            self.batch_id, "masked", reason="rehearsed: the masked ones once more", requested_by="rehearsal"
        )
        assert keys, "a rehearsal without masked rollouts has drawn nothing"
        return len(keys)

    async def _say_roll_call(self, planned: int) -> None:
        query = "SELECT * FROM rollcall WHERE batch_id = :id"
        for row in await self._world.rows(query, id=self.batch_id):
            if row["domain"] == "(all)":
                present = row["admitted"] + row["masked"]
                self._say(
                    f"  {present}/{planned} present, {planned - present} missing, 0 twice:"
                    f" {row['admitted']} admitted {dict(row['admitted_reasons'])},"
                    f" {row['masked']} masked {dict(row['masked_reasons'])}; audit clean"
                )
