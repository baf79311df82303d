"""`up`, `down`, `ps`, `logs`, `doctor`, `migrate`, `worker`: the machine under the batches."""

import asyncio
import os
import shlex
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.command import OK, AsJson, Reason, finish
from rollbook.cli.connections import connect, open_ledger, redact_reason, settings
from rollbook.cli.decide import whoami
from rollbook.cli.out import note, print_fields, print_json, print_table, say
from rollbook.config.connections import ledger_url, temporal_connect_config
from rollbook.errors import ConfigError, RollbookError
from rollbook.temporal.namespace import foreign_pollers, server_of
from rollbook.worker import Role

if TYPE_CHECKING:
    from rollbook.config.settings import Settings
    from rollbook.stack.lifecycle import StackReport

# `rollbook.stack` brings the Docker client, which is slow to import: every command imports what it needs itself.


def up(
    no_engine: Annotated[bool, typer.Option("--no-engine", help="Leave the Docker engine alone.")] = False,
) -> None:
    """Start the local stack: Temporal, Postgres, artifact server, workers. Harmless when it runs."""
    from rollbook.stack.lifecycle import up as start_stack

    async def work() -> int:
        config = settings()
        state = await start_stack(config, engine=not no_engine)
        if config.temporal != "external" and (line := elsewhere(state.temporal_address)):
            say(line)
        strangers = await foreign_pollers(await connect(settings()), state.settings_of(config))
        for queue, identities in strangers.items():
            note(
                f"warning: task queue {queue} is polled by workers of another deployment: {', '.join(identities)}; "
                "give each deployment a queue of its own (ROLLBOOK_TASK_QUEUE, ROLLBOOK_DEPLOYMENT_ID)"
            )
        await _note_unknown_desktops(state.settings_of(config))
        return 0

    finish(work())


async def _note_unknown_desktops(config: "Settings") -> None:
    """Name desktops of this deployment that no live lease of this ledger knows. Another ledger may use them."""
    from rollbook.cli.sandboxes import survey
    from rollbook.sandboxes.registry import opened_providers

    try:
        async with open_ledger(config) as ledger, opened_providers(config) as providers:
            desktops = await survey(config, ledger, providers)
    except RollbookError:  # an engine that is away is reported by `rollbook doctor`; the stack is up all the same
        return
    unknown = [desktop for desktop in desktops if desktop.verdict == "unknown"]
    if unknown:
        note(
            f"warning: {len(unknown)} desktop(s) carry the name of deployment {config.deployment_id}, and this ledger "
            "knows no live lease of them: they are left alone, another ledger may use them (`rollbook sandboxes ls`); "
            "`rollbook sandboxes reap --unknown` removes them"
        )


def env() -> None:
    """Print exports for the plain `temporal`: address, namespace, task queue. Use: eval "$(rollbook env)"."""
    config = settings()
    server = temporal_connect_config(config)
    exports = {
        "TEMPORAL_ADDRESS": server["target_host"],
        "TEMPORAL_NAMESPACE": server.get("namespace", "default"),
        "ROLLBOOK_TASK_QUEUE": config.task_queue_orchestrate,
    }
    for name, value in exports.items():
        say(f"export {name}={shlex.quote(value)}")


def elsewhere(address: str | None) -> str | None:
    """A remark when the server is not at the port where the plain `temporal` looks for it."""
    from rollbook.stack.processes import HOST, PREFERRED, holder, is_free

    usual = PREFERRED["temporal"]
    if address in (None, f"{HOST}:{usual}") or os.environ.get("TEMPORAL_ADDRESS") == address:
        return None
    why = "" if is_free(usual) else f": that port was taken by {holder(usual)}"
    return f'Temporal is at {address}, not at {HOST}:{usual}{why}; for the plain `temporal`: eval "$(rollbook env)"'


def down(
    engine: Annotated[bool, typer.Option("--engine", help="Also stop a Docker engine that `up` started.")] = False,
) -> None:
    """Stop the local stack and remove every desktop of this deployment."""
    from rollbook.stack.lifecycle import down as stop_stack

    async def work() -> int:
        await stop_stack(settings(), engine=engine)
        return 0

    finish(work())


def ps(as_json: AsJson = False) -> None:
    """Show what runs. Exit code 1 unless everything is well."""
    from rollbook.stack.lifecycle import ps as look_at_stack

    async def work() -> int:
        report = await look_at_stack(settings())
        print_json(report.model_dump(mode="json")) if as_json else _print_stack(report)
        return 0 if report.healthy else 1

    finish(work())


def _print_stack(report: "StackReport") -> None:
    rows = [
        (row.name, row.state, row.pid, row.for_s, row.restarts, row.address, (row.last_exit or "").split("\n")[0])
        for row in report.processes
    ]
    if rows:
        print_table(("NAME", "STATE", "PID", "SECONDS", "RESTARTS", "ADDRESS", "LAST EXIT"), rows)
    print_fields({"desktops": "no Docker engine" if report.desktops is None else report.desktops})
    if report.advice:
        say(report.advice)


def logs(
    name: Annotated[str | None, typer.Argument(help="One log, for instance worker; all of them by default.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines are written.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines from the end.")] = 50,
) -> None:
    """Print the logs of the local stack."""
    from rollbook.stack.lifecycle import logs as print_logs

    async def work() -> int:
        await print_logs(settings(), name, follow, lines)
        return 0

    finish(work())


def doctor(as_json: AsJson = False) -> None:
    """Report what is missing on this machine and how to fix it. Exit code 1 if a requirement is missing."""
    from rollbook.stack.doctor import doctor as examine
    from rollbook.stack.doctor import print_checks

    async def work() -> int:
        return print_checks(await examine(settings()), as_json=as_json)

    finish(work())


def adopt_temporal(reason: Reason) -> None:
    """Let this deployment's workers use the Temporal server that TEMPORAL_ADDRESS names: the one before is lost.

    Batches that lived on the lost server are started again by the Janitor.
    """

    async def work() -> int:
        config = settings()
        client = await connect(config)
        server, place = await server_of(client), (config.deployment_id, client.namespace)
        async with open_ledger(config) as ledger:
            if await ledger.temporal_server(*place) == server:
                say("nothing to do: it is the ledger's server already")
                return OK
            await ledger.adopt_temporal_server(
                *place, server, reason=redact_reason(config, reason), adopted_by=whoami()
            )
        say(f"the workflows of {place[0]} live in namespace {place[1]} ({server.namespace_id}) from now on")
        return OK

    finish(work())


class Phase(StrEnum):
    """Which revisions of the ledger's schema to apply."""

    PRE = "pre"
    POST = "post"
    ALL = "all"


def migrate(
    phase: Annotated[
        Phase, typer.Option(help="pre: before new workers start; post: after the last old one is gone.")
    ] = Phase.ALL,
) -> None:
    """Bring the ledger's schema up to date. `rollbook up` does it too."""
    from rollbook.ledger.migrate import upgrade

    async def work() -> int:
        left = await asyncio.to_thread(upgrade, ledger_url(settings(), "owner"), phase=phase.value)
        if left:
            say(f"ready for new workers; when the old ones are gone: rollbook migrate --phase post ({', '.join(left)})")
        else:
            say("the ledger has the newest schema")
        return 0

    finish(work())


def bench(context: typer.Context) -> None:
    """Measure steps, histories, ledger and desktops; arguments are those of `python -m bench`."""
    from rollbook.config.settings import PROJECT_ROOT

    if not (PROJECT_ROOT / "bench" / "__main__.py").exists():
        raise ConfigError(f"{PROJECT_ROOT / 'bench'} is missing: run this from a checkout")
    os.chdir(PROJECT_ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "bench", *context.args])


def worker(role: Annotated[Role, typer.Option(help="Which task queues to poll.")] = Role.ALL) -> None:
    """Run one worker process until SIGTERM or Ctrl-C; then it drains."""
    from rollbook.stack.servers import WORKER_COMMAND

    os.execv(sys.executable, [*WORKER_COMMAND, "--role", role.value])
