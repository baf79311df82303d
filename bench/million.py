"""The views at a million rollouts: the batch that was really played, copied under other ids by SQL."""

import time

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.house import House
from bench.ledger import _quickest, _read
from bench.report import Figure, figure

MILLION = 1_000_000
COPIED = ("rollout", "attempt", "evaluation", "outcome", "admission")


async def run(house: House, rollouts: int) -> list[Figure]:
    """Fill the ledger up to a million rollouts, then read the views of one batch and of all."""
    source = f"many-{rollouts}"
    copies = MILLION // rollouts - 1
    began = time.monotonic()
    async with house.system.ledger.engine.begin() as conn:
        await conn.execute(text("SET LOCAL statement_timeout = 0"))
        await conn.execute(text("SET LOCAL session_replication_role = replica"))  # no guards, no seals: copies
        for number in range(copies):
            await _copy(conn, source, f"copy-{number}")
    async with house.system.ledger.engine.connect() as conn:
        await conn.execution_options(isolation_level="AUTOCOMMIT")
        await conn.execute(text("SET statement_timeout = 0"))
        await conn.execute(text("ANALYZE"))
        size = (await conn.execute(text("SELECT pg_database_size(current_database())"))).scalar_one()
    filled = time.monotonic() - began
    figures = [
        figure("size of the ledger", size / 1e9, "GB", note=f"filled by SQL in {filled:.0f} s"),
        figure("counts of one batch", 1000 * await _quickest(lambda: house.system.ledger.counts(source)), "ms"),
        figure(
            "startable rows of one batch", 1000 * await _quickest(lambda: house.system.ledger.startable(source)), "ms"
        ),
    ]
    for view in ("scoreboard", "rollcall", "pass_k", "sample_spread"):
        one = await _quickest(lambda view=view: _read(house, view, source))
        figures.append(figure(f"{view} of one batch", one, "s", note=f"{rollouts:,} rollouts"))
    for view in ("scoreboard", "rollcall"):
        figures.append(figure(f"{view} of all batches", await _quickest(lambda view=view: _whole(house, view), 1), "s"))
    key = f"{source}/os/t000/0"
    timeline = await _quickest(lambda: _timeline(house, key))
    return [*figures, figure("timeline of one rollout", timeline * 1000, "ms")]


async def _copy(conn: AsyncConnection, source: str, target: str) -> None:
    names = {"source": source, "target": target}
    columns = await _columns(conn, "batch")
    renamed = [":target" if name == "batch_id" else name for name in columns]
    await conn.execute(text(_insert("batch", columns, renamed, "WHERE batch_id = :source")), names)
    for table in COPIED:
        columns = await _columns(conn, table)
        changed = {
            "batch_id": "CAST(:target AS text)",
            "rollout_key": f"CAST(:target AS text) || substr({table}.rollout_key, length(:source) + 1)",
            "run_id": "run_id || CAST(:target AS text)",
            "execution_id": "gen_random_uuid()",
        }
        values = [changed.get(name, f"{table}.{name}") for name in columns]
        rows = (
            "WHERE batch_id = :source"
            if table == "rollout"
            else (f"JOIN rollout AS own ON own.rollout_key = {table}.rollout_key WHERE own.batch_id = :source")
        )
        await conn.execute(text(_insert(table, columns, values, rows)), names)


def _insert(table: str, columns: list[str], values: list[str], rows: str) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table} {rows}"


async def _columns(conn: AsyncConnection, table: str) -> list[str]:
    query = text(
        "SELECT column_name FROM information_schema.columns WHERE table_name = :table AND is_generated = 'NEVER'"
        " AND table_schema = current_schema() ORDER BY ordinal_position"
    )
    return list((await conn.execute(query, {"table": table})).scalars())


async def _whole(house: House, view: str) -> None:
    async with house.system.ledger.engine.connect() as conn:
        (await conn.execute(text(f"SELECT * FROM {view}"))).all()


async def _timeline(house: House, key: str) -> None:
    async with house.system.ledger.engine.connect() as conn:
        query = text("SELECT * FROM episode_timeline WHERE rollout_key = :key ORDER BY at")
        if not (await conn.execute(query, {"key": key})).all():
            raise RuntimeError("the timeline is empty")
