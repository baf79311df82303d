"""`demo`: the quickstart batch from nothing to a proven roll call."""

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rollbook.cli.audit import examine, print_audit
from rollbook.cli.command import FAILURE, OK, Failed, finish, read_json
from rollbook.cli.connections import Links, open_ledger, open_reader, settings
from rollbook.cli.out import clean, print_table, say
from rollbook.cli.report import print_rollouts, print_scoreboard
from rollbook.cli.status import follow, print_roll_call
from rollbook.cli.submit import default_batch_id, launch, load_spec, read_batch_id, tell
from rollbook.config.settings import PROJECT_ROOT, Settings
from rollbook.ledger import AuditReport
from rollbook.osworld.tasksets import read_task_set
from rollbook.policies.scripted import read_script

EXAMPLES = PROJECT_ROOT / "examples"
NAME = "quickstart"
"""Name of the demo's task set, script and spec."""

Row = dict[str, Any]


def demo(
    batch_id: Annotated[str | None, typer.Option("--batch-id", help="Default: a fresh one.")] = None,
) -> None:
    """Run six small tasks on real desktops. Exit code 0 when every row is final and the audit is clean."""
    finish(_demo(batch_id))


async def _demo(requested: str | None) -> int:
    from rollbook.stack.lifecycle import up  # slow to import

    spec_file = EXAMPLES / "batches" / f"{NAME}.json"
    batch_id = default_batch_id(str(spec_file)) if requested is None else read_batch_id(requested)
    config = settings()
    await up(config)
    say()
    await register(config)
    tell(await launch(config, batch_id, load_spec(str(spec_file))))
    ended = await follow(config, batch_id)
    rollouts, report = await _print_results(config, batch_id)
    _warn_of_deviations(rollouts)
    say()
    say("next:")
    first = rollouts[0]["rollout_key"] if rollouts else f"{batch_id}/os/count-lines/0"
    for line in next_lines(first, await _free_id(config), _exports()):
        say(f"  {line}")
    return OK if ended.code == OK and report.ok else FAILURE


async def register(config: Settings) -> None:
    """The demo's task set and script; the same again change nothing."""
    if not (EXAMPLES / NAME).is_dir():
        raise Failed(f"{EXAMPLES / NAME} is missing: run the demo from a checkout")
    body = read_json(str(EXAMPLES / "scripts" / f"{NAME}.json"))
    read_script(body)
    async with open_ledger(config) as ledger:
        tasks = await ledger.register_task_set(NAME, read_task_set(EXAMPLES / NAME))
        script = await ledger.register_script(NAME, body)
    say(f"task set {NAME}@{tasks.set_digest[:12]}: {tasks.tasks} tasks; script {NAME}@{script[:12]}")


async def _print_results(config: Settings, batch_id: str) -> tuple[list[Row], AuditReport]:
    async with open_reader(config) as reader, open_ledger(config) as ledger:
        rollouts = await reader.rollouts(batch_id)
        say()
        print_rollouts(rollouts)
        say()
        print_roll_call(await reader.domains(batch_id))
        say()
        print_scoreboard(await reader.scoreboard(batch_id))
        say()
        report = await examine(config, ledger, batch_id)
        print_audit(report)
        say()
        _print_links(Links.of(config), batch_id, rollouts, await reader.last_screens(batch_id))
    return rollouts, report


def _print_links(links: Links, batch_id: str, rollouts: list[Row], screens: dict[str, str]) -> None:
    if links.ui is None:
        return
    say(f"batch in the Temporal UI:  {links.workflow(batch_id)}")
    say(f"its episodes:              {links.episodes(batch_id)}")
    if rollouts:
        say(f"one episode:               {links.workflow(rollouts[0]['rollout_key'])}")
    cells = [(row["task_id"], links.artifact(screens.get(row["rollout_key"]))) for row in rollouts]
    say()
    print_table(("TASK", "LAST SCREENSHOT"), cells)


def deviations(rollouts: list[Row], expected: dict[str, Row]) -> list[str]:
    """Differences from the results of the examples on a healthy machine."""
    lines = []
    for row in rollouts:
        wanted = expected.get(row["task_id"], {})
        for name, value in wanted.items():
            if row[name] != value:
                lines.append(f"{row['task_id']}: {name} is {row[name]}, expected {value}")
    return lines


def _warn_of_deviations(rollouts: list[Row]) -> None:
    expected = json.loads((EXAMPLES / NAME / "expected.json").read_text())
    lines = deviations(rollouts, expected)
    say()
    for line in lines:
        say(f"warning: {clean(line)}")
    if not lines:
        say("every result is as expected; not all scores are 1: one script fails on purpose, one does part of the work")


async def _free_id(config: Settings) -> str:
    """`try-1`, or the next one that no batch has."""
    async with open_reader(config) as reader:
        for number in itertools.count(1):
            if await reader.known_batch(f"try-{number}") is None:
                return f"try-{number}"
    raise AssertionError("numbers do not end")


def next_lines(rollout: str, free_id: str, exports: list[str]) -> list[str]:
    """Commands to go on with, as they can be pasted into a shell in this directory."""
    spec = _relative(EXAMPLES / "batches" / f"{NAME}.json")
    return [
        *exports,
        f"rollbook show {rollout}",
        f"rollbook sql -c \"SELECT * FROM rollcall WHERE batch_id = '{rollout.partition('/')[0]}'\"",
        f'temporal workflow start --type BenchmarkBatch --task-queue "$ROLLBOOK_TASK_QUEUE" '
        f"--workflow-id {free_id} --fail-existing --input-file {spec}",
        f"rollbook watch {free_id}",
    ]


def _exports() -> list[str]:
    """Shell exports with which `rollbook` and `temporal` are found, and `temporal` finds server and task queue."""
    lines = []
    if not (shutil.which("rollbook") and shutil.which("temporal")):
        lines.append(f"export PATH={Path(sys.executable).parent}:$PATH")
    return [*lines, 'eval "$(rollbook env)"']


def _relative(path: Path) -> str:
    """A path as people in this directory would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
