"""The ledger: a roll call in Postgres. Every planned rollout is a row before it runs.

One module per subject, with a class whose methods are the calls; `Ledger` is all of them. `fence` and `outcomes` are
shared by several, `tables` holds the schema, `migrate` brings a database to it.

SQL: statements with joins, sub-selects or arrays, and all reads for people, are named statements in
`sql/<module>.sql`; simple statements on single rows are written with SQLAlchemy Core. No SQL text in Python.
"""

from rollbook.ledger.admission import Admissions
from rollbook.ledger.attempts import Attempts
from rollbook.ledger.audit import Audits
from rollbook.ledger.control import BatchControls
from rollbook.ledger.imports import Imports
from rollbook.ledger.janitor import Reconciliation
from rollbook.ledger.leases import Leases
from rollbook.ledger.planning import Planning
from rollbook.ledger.reader import Reader
from rollbook.ledger.records import (
    AttemptContext,
    AuditReport,
    BatchControl,
    CallRecord,
    Claim,
    Evaluation,
    Examination,
    Finding,
    Lease,
    ModelCall,
    Phase,
    Registered,
    RegisteredSet,
    StartRow,
    StoredEvaluation,
    StoredTurn,
    Suspect,
)


class Ledger(Planning, BatchControls, Attempts, Leases, Admissions, Reconciliation, Imports, Audits, Reader):
    """The whole ledger over one connection pool.

    Methods raise errors of `rollbook.errors`, or SQLAlchemy's OperationalError when Postgres cannot be reached.
    """


__all__ = [
    "AttemptContext",
    "AuditReport",
    "BatchControl",
    "CallRecord",
    "Claim",
    "Evaluation",
    "Examination",
    "Finding",
    "Lease",
    "Ledger",
    "ModelCall",
    "Phase",
    "Registered",
    "RegisteredSet",
    "StartRow",
    "StoredEvaluation",
    "StoredTurn",
    "Suspect",
]
