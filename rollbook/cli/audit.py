"""`audit`: prove the roll call of a batch from the ledger and the artifact store alone."""

from dataclasses import asdict

from rollbook.artifacts import ArtifactStore
from rollbook.cli.aio import finish
from rollbook.cli.failures import NOT_TRUE, OK
from rollbook.cli.opening import open_ledger, open_reader, settings
from rollbook.cli.options import AsJson, BatchArgument
from rollbook.cli.out import clean, print_json, print_table, say, several
from rollbook.config.settings import Settings
from rollbook.ledger import AuditReport, Ledger


def audit(batch: BatchArgument, as_json: AsJson = False) -> None:
    """Prove that every planned rollout is there once, whole and unchanged. Exit code 1 if anything is wrong."""

    async def work() -> int:
        found = settings()
        async with open_reader(found) as reader:
            await reader.batch(batch)  # a wrong name is told with those that are like it
        async with open_ledger(found) as ledger:
            report = await examine(found, ledger, batch)
        print_json(asdict(report)) if as_json else print_audit(report)
        return OK if report.ok else NOT_TRUE

    finish(work())


async def examine(found: Settings, ledger: Ledger, batch_id: str) -> AuditReport:
    """The audit of a batch."""
    return await ledger.audit(batch_id, ArtifactStore.open(found.artifacts))


def print_audit(report: AuditReport) -> None:
    """What is wrong, row by row; then what is worth knowing; then the verdict."""
    if report.findings:
        cells = [(finding.kind, finding.subject, clean(finding.detail, 300)) for finding in report.findings]
        print_table(("WRONG", "WHERE", "WHAT"), cells)
        say()
    for notice in report.notices:
        say(f"note: {notice.kind}: {notice.subject}: {clean(notice.detail, 300)}")
    verdict = "audit clean" if report.ok else f"audit failed: {several(len(report.findings), 'finding')}"
    say(
        f"{report.batch_id}: {verdict}; {report.planned} planned, {report.final} final, "
        f"{report.artifacts_checked} artifacts checked"
    )
