"""The ledger: a roll call in Postgres. Every planned rollout is a row before it runs (DESIGN §5)."""

from rollbook.ledger.ledger import Ledger
from rollbook.ledger.records import (
    AttemptContext,
    AuditReport,
    BatchControl,
    Claim,
    Evaluation,
    Finding,
    Lease,
    ModelCall,
    Registered,
    RegisteredSet,
    StartRow,
    StoredCall,
    StoredEvaluation,
    StoredTurn,
    Suspect,
)

__all__ = [
    "AttemptContext",
    "AuditReport",
    "BatchControl",
    "Claim",
    "Evaluation",
    "Finding",
    "Lease",
    "Ledger",
    "ModelCall",
    "Registered",
    "RegisteredSet",
    "StartRow",
    "StoredCall",
    "StoredEvaluation",
    "StoredTurn",
    "Suspect",
]
