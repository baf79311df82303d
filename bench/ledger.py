"""Growth of the ledger: register, finalize with competing writers, audit and scoreboard, at a tenth and in full."""

import asyncio
import os
import sys
import time
import uuid
from typing import Any

from sqlalchemy import text

from bench.house import House, Meter
from bench.procfs import forget_peak, peak_memory_mb, private_memory_mb
from bench.report import Figure, figure
from models.batch import RegisterBatch
from models.contract import Resolved
from models.spec import read_spec
from rollbook.config.settings import PROJECT_ROOT
from tests.support.system import null_spec, small_tasks

TASK_SET = "many"
SAMPLES = 100
WRITERS = 8
READS = 3


async def run(house: House, rollouts: int, played: int) -> list[Figure]:
    """Measure a batch of a tenth of the size, then the whole one; cost per row must not grow.

    Writers play `played` rollouts of the whole batch; the rest is closed as a cancelled batch is.
    """
    await house.system.register_tasks(TASK_SET, small_tasks(max(1, rollouts // SAMPLES)))
    small = await _batch(house, rollouts // 10, played // 10)
    large = await _batch(house, rollouts, played)
    closed = max(1, rollouts - played)
    figures = [
        figure("register", large["register"], "s", aim="≤ 15"),
        figure("finalize, 8 competing writers", played / large["finalize"], "1/s", note=f"{played:,}, one by one"),
        figure("finalize, CPU of Postgres", large["finalize Postgres"] / played, "ms each"),
        figure("finalize, CPU of the writers", large["finalize writers"] / played, "ms each"),
        figure("close the rest as cancelled", large["close"], "s", note=f"{rollouts - played:,}, in sets"),
        figure("audit", large["audit"], "s", aim="≤ 5"),
        figure("audit, CPU of Postgres", large["audit Postgres"] / 1000, "s"),
        figure("scoreboard", large["scoreboard"], "s", aim="≤ 1"),
        figure("roll call", large["rollcall"], "s"),
        figure("counts, as the pump reads them", large["counts"] * 1000, "ms"),
        figure("startable, as the pump reads them", large["startable"] * 1000, "ms", note="nothing is waiting"),
        figure("memory of the registering process, peak", large["client peak"], "MB"),
        figure("memory of Postgres", large["postgres memory"], "MB", note="after the audit, shared pages once"),
    ]
    return figures + [
        figure(f"{name}: cost per row, whole ÷ a tenth", large[name] / small[name] / 10, "×", note="1 is linear")
        for name in ("register", "finalize", "audit", "scoreboard", "rollcall", *(["close"] if closed > 1 else []))
    ]


async def _batch(house: House, rollouts: int, played: int) -> dict[str, float]:
    batch_id = f"many-{rollouts}"
    forget_peak()
    seen = {"register": await _register(house, batch_id, rollouts), "client peak": peak_memory_mb(os.getpid())}
    seen |= await _finalize(house, batch_id, played)
    began = time.monotonic()
    if await house.system.ledger.close_open(batch_id, "the bench closes what was not played") != rollouts - played:
        raise RuntimeError("a played rollout was still open")
    seen["close"] = time.monotonic() - began
    postgres = house.server_pids()["Postgres"]
    meter = Meter({"Postgres": postgres})
    seen["audit"] = await _quickest(lambda: _audit(house, batch_id, rollouts), 1)
    seen["audit Postgres"] = meter.spent()["Postgres"]
    seen["postgres memory"] = private_memory_mb(postgres)
    for view in ("scoreboard", "rollcall"):
        seen[view] = await _quickest(lambda view=view: _read(house, view, batch_id))
    seen["counts"] = await _quickest(lambda: house.system.ledger.counts(batch_id))
    seen["startable"] = await _quickest(lambda: house.system.ledger.startable(batch_id))
    return seen


async def _register(house: House, batch_id: str, rollouts: int) -> float:
    ids = [f"t{number:03d}" for number in range(rollouts // SAMPLES)]
    spec = read_spec(null_spec(TASK_SET, samples=SAMPLES, tasks={"ids": ids}))
    request = RegisterBatch(batch_id=batch_id, namespace="default", spec=spec, launch_id=uuid.uuid4().hex)
    resolved = Resolved(evaluator_revision="bench", null_desktop=True)
    began = time.monotonic()
    done = await house.system.ledger.register_batch(request, deployment_id="bench", resolved=resolved)
    if done.added != rollouts:
        raise RuntimeError(f"{done.added} rows were planned, not {rollouts}")
    return time.monotonic() - began


async def _finalize(house: House, batch_id: str, played: int) -> dict[str, float]:
    """Eight writers in as many processes as there are cores."""
    assert house.settings.database_url is not None
    processes = min(WRITERS, os.cpu_count() or 1)
    url = house.settings.database_url.get_secret_value()
    began, meter = time.monotonic(), Meter({"Postgres": house.server_pids()["Postgres"]})
    own = os.times()
    running = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.writer", url, batch_id, str(played)),
            *(str(WRITERS // processes), str(number), str(processes)),
            cwd=PROJECT_ROOT,
        )
        for number in range(processes)
    ]
    for process in running:
        if await process.wait() != 0:
            raise RuntimeError("a writer failed")
    now = os.times()
    return {
        "finalize": time.monotonic() - began,
        "finalize Postgres": meter.spent()["Postgres"],
        "finalize writers": 1000 * (now.children_user + now.children_system - own.children_user - own.children_system),
    }


async def _audit(house: House, batch_id: str, rollouts: int) -> None:
    report = await house.system.ledger.audit(batch_id)
    if not report.ok or (report.planned, report.final) != (rollouts, rollouts):
        raise RuntimeError(f"the audit is not clean: {report.planned}, {report.final}, {report.findings[:3]}")


async def _read(house: House, view: str, batch_id: str) -> None:
    async with house.system.ledger.engine.connect() as connection:
        query = text(f"SELECT * FROM {view} WHERE batch_id = :batch_id")
        rows = (await connection.execute(query, {"batch_id": batch_id})).all()
    if not rows:
        raise RuntimeError(f"{view} is empty")


async def _quickest(work: Any, times: int = READS) -> float:
    """Seconds of the quickest of a few tries: what else runs on the machine only ever adds."""
    found = []
    for _ in range(times):
        began = time.monotonic()
        await work()
        found.append(time.monotonic() - began)
    return min(found)
