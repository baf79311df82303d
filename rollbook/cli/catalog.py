"""`tasks` and `scripts`: what batches are made of."""

from pathlib import Path
from typing import Annotated, Any

import typer

from models.task import Task
from rollbook.cli.command import AsJson, finish, read_json
from rollbook.cli.connections import open_ledger, open_reader, settings
from rollbook.cli.out import note, print_json, print_table, say, several
from rollbook.errors import InvalidInput
from rollbook.osworld.capabilities import validate_task
from rollbook.osworld.tasksets import LIST_FILE, read_task_set
from rollbook.policies.scripted import read_script

tasks = typer.Typer(no_args_is_help=True, help="Register and list task sets.")
scripts = typer.Typer(no_args_is_help=True, help="Register and list scripts of the scripted policy.")

Name = Annotated[str, typer.Option("--name", help="Name under which specs refer to it.")]


@tasks.command("register")
def register_tasks(
    directory: Annotated[Path, typer.Argument(help="Holds examples/<domain>/<task_id>.json and the list file.")],
    name: Name,
    list_file: Annotated[str, typer.Option("--list", help="List file: domain to task ids.")] = LIST_FILE,
    strict: Annotated[bool, typer.Option(help="Refuse tasks that the evaluator cannot set up or score.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a directory of tasks in OSWorld's layout. The same tasks again change nothing."""

    async def work() -> int:
        tasks = read_task_set(directory, list_file)
        problems = {f"{task.domain}/{task.task_id}": lines for task in tasks if (lines := validate_task(task.document))}
        _tell(problems, strict)
        async with open_ledger(settings()) as ledger:
            done = await ledger.register_task_set(_name(name), tasks)
        if as_json:
            print_json(
                {"name": done.name, "digest": done.set_digest, "tasks": done.tasks, "new": done.added}
                | {"problems": problems}
            )
        else:
            what = (
                f"{several(done.tasks, 'task')} in {several(_domains(tasks), 'domain')}, {done.added} new to the ledger"
            )
            say(f"task set {done.name}@{done.set_digest[:12]}: {what}")
        return 0

    finish(work())


def _name(name: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from models.base import Name as NameType

    try:
        return str(TypeAdapter(NameType).validate_python(name))
    except ValidationError:
        raise InvalidInput(
            f"--name: {name!r}: letters, digits, '_', '.' and '-' only, at most 128, the first a letter or digit"
        ) from None


def _domains(tasks: list[Task]) -> int:
    return len({task.domain for task in tasks})


def _tell(problems: dict[str, list[str]], strict: bool) -> None:
    for key, lines in problems.items():
        note(f"{'error' if strict else 'warning'}: {key}: {'; '.join(dict.fromkeys(lines))}")
    if problems and strict:
        some = several(len(problems), "task")
        raise InvalidInput(f"{some} cannot be set up or scored here: fix the tasks above or omit --strict")


@tasks.command("ls")
def list_tasks(as_json: AsJson = False) -> None:
    """List the registered task sets."""

    async def work() -> int:
        async with open_reader(settings()) as reader:
            rows = await reader.task_sets()
        if as_json:
            print_json(rows)
        else:
            columns = ("NAME", "DIGEST", "TASKS", "DOMAINS", "REGISTERED")
            listed = [
                (row["name"], row["set_digest"][:12], row["task_count"], row["domains"], row["registered_at"])
                for row in rows
            ]
            print_table(columns, listed)
        return 0

    finish(work())


@scripts.command("register")
def register_script(
    file: Annotated[Path, typer.Argument(help="Script file: steps per task.")],
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Register a script file for the scripted policy. The same file again changes nothing."""

    async def work() -> int:
        body: dict[str, Any] = read_json(str(file))
        script = read_script(body)
        async with open_ledger(settings()) as ledger:
            digest = await ledger.register_script(_name(name), body)
        if as_json:
            print_json({"name": name, "digest": digest, "tasks": len(script.tasks)})
        else:
            say(f"script {name}@{digest[:12]}: {several(len(script.tasks), 'task')}")
        return 0

    finish(work())


@scripts.command("ls")
def list_scripts(as_json: AsJson = False) -> None:
    """List the registered scripts."""

    async def work() -> int:
        async with open_reader(settings()) as reader:
            rows = await reader.scripts()
        if as_json:
            print_json(rows)
        else:
            columns = ("NAME", "DIGEST", "TASKS", "REGISTERED")
            listed = [(row["name"], row["script_digest"][:12], row["tasks"], row["registered_at"]) for row in rows]
            print_table(columns, listed)
        return 0

    finish(work())
