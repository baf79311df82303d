"""`status`: the roll call of all batches, or of one."""

from typing import Annotated, Any

import typer

from models.batch import Counts
from models.contract import RecordedContract
from rollbook.cli.aio import finish
from rollbook.cli.failures import Failed
from rollbook.cli.launch import Pulse, pulse_of
from rollbook.cli.links import Links
from rollbook.cli.opening import connect, open_reader, settings
from rollbook.cli.options import AsJson
from rollbook.cli.out import duration, note, print_fields, print_json, print_table, say
from rollbook.cli.state import advice, age_s, control_of, eta_s, state_of
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError
from rollbook.ledger.reader import BatchRow, Reader

COUNTS = ("planned", "waiting", "running", "admitted", "masked")


def status(
    batch: Annotated[str | None, typer.Argument(metavar="[BATCH]", help="Batch id; the newest batches by default.")] = (
        None
    ),
    limit: Annotated[int, typer.Option(min=1, help="How many batches to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the roll call: planned = admitted + masked + running + waiting."""

    async def work() -> int:
        found = settings()
        async with open_reader(found) as reader:
            if batch is None:
                await _list(found, reader, limit, as_json)
            else:
                await _one(found, reader, batch, as_json)
        return 0

    finish(work())


async def pulses(found: Settings, batch_ids: list[str]) -> dict[str, Pulse]:
    """The pulses of batch workflows; empty, with a note, where Temporal does not answer."""
    try:
        client = await connect(found)
        return {batch_id: await pulse_of(client, batch_id) for batch_id in batch_ids}
    except (Failed, ConfigError) as error:
        note(f"note: {error}")
        return {}


async def _list(found: Settings, reader: Reader, limit: int, as_json: bool) -> None:
    rows = [(row, await reader.counts(row.batch_id)) for row in await reader.batches(limit)]
    unsettled = [row.batch_id for row, counts in rows if row.cancelling or counts.waiting or counts.running]
    alive = {batch_id: p.life for batch_id, p in (await pulses(found, unsettled) if unsettled else {}).items()}
    listed = [(row, counts, state_of(row, counts, alive.get(row.batch_id))) for row, counts in rows]
    if as_json:
        print_json([_summary(row, counts, state) for row, counts, state in listed])
        return
    columns = ("BATCH", "STATE", *(name.upper() for name in COUNTS), "POLICY", "CREATED")
    cells = [
        (row.batch_id, state, *(getattr(counts, name) for name in COUNTS), row.policy, row.created_at)
        for row, counts, state in listed
    ]
    print_table(columns, cells, optional=("CREATED", "POLICY")) if cells else say(
        "the ledger has no batch yet: `rollbook submit FILE` starts one"
    )


def _summary(row: BatchRow, counts: Counts, state: str) -> dict[str, Any]:
    return {
        "batch_id": row.batch_id,
        "state": state,
        **counts.model_dump(),
        "policy": row.policy,
        "created_at": row.created_at,
        "closed_at": row.closed_at,
    }


async def _one(found: Settings, reader: Reader, batch_id: str, as_json: bool) -> None:
    picture = await look(found, reader, batch_id)
    if as_json:
        print_json(picture)
    else:
        print_picture(picture)


async def look(found: Settings, reader: Reader, batch_id: str) -> dict[str, Any]:
    """Everything that `status BATCH` shows."""
    row = await reader.batch(batch_id)
    counts = await reader.counts(batch_id)
    pulse = (await pulses(found, [batch_id])).get(batch_id)
    state = state_of(row, counts, pulse.life if pulse else None)
    ended, seconds = await reader.pace(batch_id, row.registered_at or row.created_at)
    links = Links.of(found)
    return {
        **_summary(row, counts, state),
        "advice": advice(row, state),
        "troubles": pulse.troubles if pulse else [],
        "note": (row.spec or {}).get("note", ""),
        "contract_digest": row.contract_digest,
        "null_desktop": RecordedContract.read(row.contract).resolved.null_desktop,
        "control": control_of(row),
        "launch": row.launch_index,
        "eta_s": eta_s(state, counts, ended, seconds),
        "domains": await reader.domains(batch_id),
        "masked_reasons": await reader.masked(batch_id),
        "under_way": await reader.running(batch_id),
        "links": {"batch": links.workflow(batch_id), "episodes": links.episodes(batch_id)},
    }


def print_picture(picture: dict[str, Any]) -> None:
    """The status of one batch, for people."""
    eta = picture["eta_s"]
    control = picture["control"]
    print_fields(
        {
            "batch": picture["batch_id"],
            "state": picture["state"],
            "note": picture["note"],
            "beware": "do-nothing desktop: its scores mean nothing" if picture["null_desktop"] else None,
            "policy": picture["policy"],
            "concurrency": control["concurrency"],
            "control": control["reason"],
            "launch": picture["launch"],
            "time left": duration(eta) if eta else None,
            "Temporal UI": picture["links"]["batch"],
            "episodes": picture["links"]["episodes"],
        }
    )
    say()
    print_roll_call(picture["domains"])
    if picture["masked_reasons"]:
        say()
        print_table(("MASKED BECAUSE", "ROLLOUTS"), [(r["reason"], r["rollouts"]) for r in picture["masked_reasons"]])
    if picture["under_way"]:
        say()
        _print_under_way(picture["under_way"])
    for trouble in picture["troubles"]:
        say(f"trouble: {trouble}")
    if picture["advice"]:
        say()
        say(picture["advice"])


def print_roll_call(domains: list[dict[str, Any]]) -> None:
    """planned = admitted + masked + running + waiting, by domain and in all."""
    rows = [(row["domain"], *(row[name] for name in COUNTS)) for row in domains]
    if len(rows) > 1:
        rows.append(("all", *(sum(row[name] for row in domains) for name in COUNTS)))
    print_table(("DOMAIN", *(name.upper() for name in COUNTS)), rows)


def _print_under_way(rows: list[dict[str, Any]]) -> None:
    cells = [
        (
            row["rollout_key"],
            row["state"],
            row["attempt"],
            row["step"],
            duration(age_s(row["claimed_at"])) if row["claimed_at"] else None,
            row["view_url"],
        )
        for row in rows
    ]
    print_table(("UNDER WAY", "STATE", "ATTEMPT", "STEP", "FOR", "LIVE VIEW"), cells)
