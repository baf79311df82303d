"""The command tree."""

from importlib.metadata import version
from typing import Annotated

import typer

from rollbook.cli import (
    audit,
    catalog,
    control,
    decide,
    demo,
    imports,
    machine,
    probe,
    reconcile,
    redecide,
    report,
    rerun,
    show,
    sql,
    status,
    submit,
    watch,
)
from rollbook.cli.evidence import evidence
from rollbook.cli.export import export
from rollbook.cli.out import say
from rollbook.cli.sandboxes import sandboxes

app = typer.Typer(
    name="rollbook",
    help="Durable OSWorld rollouts: Temporal workflows, a Postgres ledger, and a roll call that adds up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

STACK, SETUP, BATCHES, RESULTS = "The local stack", "What batches are made of", "Batches", "Results"

for command, panel in (
    (machine.up, STACK),
    (machine.down, STACK),
    (machine.ps, STACK),
    (machine.logs, STACK),
    (machine.doctor, STACK),
    (machine.migrate, STACK),
    (machine.worker, STACK),
    (reconcile.reconcile, STACK),
    (demo.demo, STACK),
    (probe.probe, SETUP),
    (submit.submit, BATCHES),
    (status.status, BATCHES),
    (watch.watch, BATCHES),
    (control.pause, BATCHES),
    (control.resume, BATCHES),
    (control.stop, BATCHES),
    (control.set_concurrency, BATCHES),
    (control.cancel, BATCHES),
    (rerun.rerun, BATCHES),
    (show.show, RESULTS),
    (report.report, RESULTS),
    (audit.audit, RESULTS),
    (decide.admit, RESULTS),
    (decide.mask, RESULTS),
    (redecide.redecide, RESULTS),
    (sql.sql, RESULTS),
):
    app.command(rich_help_panel=panel)(command)

app.command(rich_help_panel=STACK, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    machine.bench
)
app.add_typer(catalog.tasks, name="tasks", rich_help_panel=SETUP)
app.add_typer(catalog.scripts, name="scripts", rich_help_panel=SETUP)
app.add_typer(evidence, name="evidence", rich_help_panel=RESULTS)
app.add_typer(export, name="export", rich_help_panel=RESULTS)
app.add_typer(imports.imports, name="import", rich_help_panel=RESULTS)
app.add_typer(sandboxes, name="sandboxes", rich_help_panel=STACK)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"rollbook {version('rollbook')}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""
