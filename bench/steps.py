"""Cost of a step: the real system on the do-nothing desktop, and the same steps without ledger and artifacts."""

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from temporalio.client import Client, WorkflowHandle

from bench.house import STATS_PATIENCE_S, House, Meter
from bench.report import Figure, figure
from models import names
from models.episode import EpisodeStart
from rollbook.temporal.plugin import RollbookPlugin
from tests.support.system import null_spec, small_tasks

TASKS = "bench-tasks"
HISTORY_STEPS = 100
_GAPS = text("""
    SELECT extract(epoch FROM ended_at - lag(ended_at) OVER (PARTITION BY rollout_key ORDER BY step)) * 1000 AS ms
    FROM turn JOIN rollout USING (rollout_key) WHERE batch_id = :batch_id
""")


@dataclass
class Rounds:
    """Measurements of one concurrency, one entry per round."""

    wall_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    transactions: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)

    def add_cpu(self, spent: dict[str, float], steps: int) -> None:
        """CPU milliseconds of a round, divided by its steps."""
        for name, value in spent.items():
            self.cpu_ms.setdefault(name, []).append(value / steps)

    @property
    def total_cpu_ms(self) -> list[float]:
        """CPU of all processes together, per step."""
        return [sum(values) for values in zip(*self.cpu_ms.values(), strict=True)]


def noop_spec(episodes: int, steps: int, concurrency: int) -> dict[str, Any]:
    """Episodes that wait `steps` - 1 times and then say DONE."""
    return null_spec(
        TASKS,
        policy={"kind": "noop", "waits": steps - 1},
        limits={"max_steps": steps},
        tasks={"ids": [f"t{number:03d}" for number in range(episodes)]},
        concurrency=concurrency,
    )


async def measure(house: House, episodes: int, steps: int, concurrency: int, rounds: int) -> Rounds:
    """Run `rounds` batches of `episodes` × `steps` steps at one concurrency, on one warm worker."""
    found = Rounds()
    async with house.worker() as worker:
        await house.system.run_batch(noop_spec(min(8, episodes), steps, concurrency), _new_id())
        transactions = await house.transactions(STATS_PATIENCE_S)
        for _ in range(rounds):
            batch_id = _new_id()
            writes = await _write_id(house)
            meter, began = Meter({"worker": worker, **house.server_pids()}), time.monotonic()
            await house.system.run_batch(noop_spec(episodes, steps, concurrency), batch_id)
            wall_s = time.monotonic() - began
            done = await _steps_of(house, batch_id)
            found.add_cpu(meter.spent(), done)
            found.wall_ms.append(wall_s * 1000 / done)
            found.gap_ms.append(await _median_gap_ms(house, batch_id))
            found.writes.append((await _write_id(house) - writes) / done)
    found.transactions.append((await house.transactions(0.5) - transactions) / (done * rounds))
    return found


async def measure_bare(house: House, episodes: int, steps: int, concurrency: int, rounds: int) -> Rounds:
    """The same episodes with activities that do nothing, started directly: no ledger, no artifacts, no pump."""
    found, queue = Rounds(), f"bare-{uuid.uuid4().hex[:8]}"
    client = await Client.connect(house.temporal.address, plugins=[RollbookPlugin()])
    async with house.bare_worker(queue, steps) as worker:
        await _run_bare(client, queue, 8, concurrency)
        for _ in range(rounds):
            meter = Meter({"worker": worker, "Temporal server": house.server_pids()["Temporal server"]})
            began = time.monotonic()
            await _run_bare(client, queue, episodes, concurrency)
            found.wall_ms.append((time.monotonic() - began) * 1000 / (episodes * steps))
            found.add_cpu(meter.spent(), episodes * steps)
    return found


async def _run_bare(client: Client, queue: str, episodes: int, concurrency: int) -> None:
    window = asyncio.Semaphore(concurrency)

    async def one() -> None:
        async with window:
            key = f"bare/{uuid.uuid4().hex}"
            await client.execute_workflow(names.EPISODE, EpisodeStart(rollout_key=key), id=key, task_queue=queue)

    await asyncio.gather(*(one() for _ in range(episodes)))


async def history(house: House) -> list[Figure]:
    """Events and bytes of the history of one episode of 100 steps."""
    batch_id = _new_id()
    async with house.worker():
        await house.system.run_batch(noop_spec(1, HISTORY_STEPS, 1), batch_id)
    handle: WorkflowHandle[Any, Any] = house.system.client.get_workflow_handle(f"{batch_id}/os/t000/0")
    described = await handle.describe()
    events = (await handle.fetch_history()).events
    largest = max(event.ByteSize() for event in events)
    return [
        figure("events per 100 steps", described.history_length, "events", aim="≤ 1,300"),
        figure(
            "history per 100 steps",
            described.raw_description.workflow_execution_info.history_size_bytes / 1000,
            "kB",
            aim="< 600",
        ),
        figure("largest event", largest / 1000, "kB", aim="< 16"),
    ]


async def idle_pump(house: House, seconds: float = 10.0) -> list[Figure]:
    """Cost of a batch while its episodes wait: a frozen window, only the pump polls."""
    batch_id = _new_id()
    async with house.worker() as worker:
        spec = noop_spec(1, 2, 1) | {"settle": {"after_action_s": 60, "after_setup_s": 0, "before_evaluation_s": 0}}
        handle = await house.system.start_batch(spec, batch_id)
        await asyncio.sleep(3)
        transactions = await house.transactions(STATS_PATIENCE_S)
        meter, began = Meter({"worker": worker, **house.server_pids()}), time.monotonic()
        await asyncio.sleep(seconds)
        passed, spent = time.monotonic() - began, meter.spent()
    looked_s = time.monotonic() - began  # the pump looks on while the worker drains
    reads = await house.transactions(0.5) - transactions
    await handle.terminate("measured")
    figures = [figure(f"CPU, {name}", value / passed, "ms/s") for name, value in spent.items()]
    return [*figures, figure("transactions", reads / looked_s, "1/s")]


async def run(
    house: House, episodes: int, steps: int, concurrencies: list[int], rounds: int
) -> dict[str, list[Figure]]:
    """All figures of this module, by section."""
    await house.system.register_tasks(TASKS, small_tasks(max(episodes, 8)))
    sections: dict[str, list[Figure]] = {}
    for concurrency in concurrencies:
        full = await measure(house, episodes, steps, concurrency, rounds)
        bare = await measure_bare(house, episodes, steps, concurrency, rounds)
        title = f"{episodes} episodes × {steps} steps, do-nothing desktop, concurrency {concurrency}"
        sections[title] = _figures(full, bare, concurrency)
    sections["history"] = await history(house)
    sections["a batch whose episodes wait"] = await idle_pump(house)
    return sections


def _figures(full: Rounds, bare: Rounds, concurrency: int) -> list[Figure]:
    aim = "≤ 40" if concurrency == 1 else ""
    ratio = [ours / floor for ours, floor in zip(full.total_cpu_ms, bare.total_cpu_ms, strict=True)]
    return [
        figure("wall per step, whole batch", full.wall_ms, "ms", aim=aim),
        figure("wall between two committed steps", full.gap_ms, "ms", note="median within an episode"),
        *(figure(f"CPU per step, {name}", values, "ms") for name, values in full.cpu_ms.items()),
        figure("CPU per step, all", full.total_cpu_ms, "ms"),
        figure("ledger transactions per step", full.transactions, "", note="reads and the pump's included"),
        figure("ledger writes per step", full.writes, "transactions"),
        figure("wall per step without ledger", bare.wall_ms, "ms", note="same workflow, activities do nothing"),
        *(figure(f"CPU per step without ledger, {name}", values, "ms") for name, values in bare.cpu_ms.items()),
        figure("CPU with ÷ without ledger", ratio, "×"),
    ]


async def _steps_of(house: House, batch_id: str) -> int:
    query = text("SELECT sum(steps) FROM rollout JOIN outcome USING (rollout_key) WHERE batch_id = :batch_id")
    async with house.system.ledger.engine.connect() as connection:
        return int((await connection.execute(query, {"batch_id": batch_id})).scalar_one())


async def _median_gap_ms(house: House, batch_id: str) -> float:
    query = text(f"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FROM ({_GAPS.text}) AS gap")
    async with house.system.ledger.engine.connect() as connection:
        return float((await connection.execute(query, {"batch_id": batch_id})).scalar_one())


async def _write_id(house: House) -> int:
    """Number of the next transaction that writes."""
    async with house.system.ledger.engine.connect() as connection:
        return int(str((await connection.execute(text("SELECT pg_current_xact_id()"))).scalar_one()))


def _new_id() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"
