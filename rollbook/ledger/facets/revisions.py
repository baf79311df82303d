"""After the fact: reruns, admission decisions, imports, the audit."""

from collections.abc import Sequence
from typing import Any

from models.admission import AdmissionDecision
from models.episode import AttemptRef
from rollbook.ledger import audit as auditing
from rollbook.ledger import control, decisions, imports, redecide, rerun
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import AuditReport, Registered


class Revisions(Facet):
    """After the fact: reruns, admission decisions, imports, the audit."""

    async def request_rerun(
        self,
        batch_id: str,
        which: rerun.Selector | Sequence[str],
        *,
        reason: str,
        requested_by: str,
        supersede: bool = False,
    ) -> list[str]:
        """Ask for final rollouts (`masked`, `failed`, `all` or keys) to run again; the keys that now wait."""
        async with transaction(self.engine) as conn:
            return await rerun.request_rerun(
                conn, batch_id, which, reason=reason, requested_by=requested_by, supersede=supersede
            )

    async def decide_admission(
        self,
        rollout_key: str,
        decision: AdmissionDecision,
        *,
        decided_by: str,
        attempt_index: int | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> AttemptRef:
        """Append a decision on an ended attempt, the selected one by default."""
        async with transaction(self.engine) as conn:
            return await decisions.decide_admission(
                conn, rollout_key, decision, decided_by=decided_by, attempt_index=attempt_index, evidence=evidence
            )

    async def redecide(
        self, batch_id: str, rule: redecide.Rule, *, dry_run: bool = False, chunk: int = 500
    ) -> redecide.Redecided:
        """Decide the selected attempts of a batch anew, in transactions of `chunk` rollouts; repeating it is harmless.

        `dry_run`: count only. Raises InvalidInput for an unknown batch or policy.
        """
        done, after = redecide.start(rule), -1
        async with reading(self.engine) as conn:
            await control.batch_control(conn, batch_id)
        while True:
            async with transaction(self.engine) as conn:
                last = await redecide.redecide_some(conn, batch_id, rule, done, after, dry_run=dry_run, chunk=chunk)
            if last is None:
                return done
            after = last

    async def import_results(self, source: imports.Source) -> Registered:
        """Import results that ran elsewhere as one finished batch, all of them or nothing."""
        async with transaction(self.engine) as conn:
            return await imports.import_results(conn, source)

    async def audit(self, batch_id: str, artifacts: auditing.Artifacts | None = None) -> AuditReport:
        """Prove the roll call of a batch, or list what is wrong; without `artifacts` their bytes are not read."""
        return await auditing.audit(self.engine, batch_id, artifacts)
