"""What a verification says: what is equal, what is not, and what could not be checked."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rollbook.ledger.reader import Row


@dataclass(frozen=True)
class Mismatch:
    """Something that does not follow from the records, or of which nobody can say whether it does."""

    step: int
    parse_attempt: int
    what: str
    detail: str


@dataclass(frozen=True)
class Proof:
    """What was checked of an attempt."""

    rollout_key: str
    attempt_index: int
    calls: int
    prompts_equal: int
    """Prompts that were rendered again, with the same digest."""
    requests_equal: int
    """Requests of completed calls that were built again with their images, byte for byte as they were sent."""
    replies_equal: int
    """Replies that were read again, to the same actions."""
    images_equal: int
    mismatches: list[Mismatch]
    unchecked: list[Mismatch]
    """What could not be checked here, and why; not a proof of anything."""

    @property
    def ok(self) -> bool:
        """Everything follows from the records, and everything was checked."""
        return not self.mismatches and not self.unchecked

    def to_json(self) -> dict[str, Any]:
        """As printed with `--json`."""
        return {"ok": self.ok, **asdict(self)}


@dataclass
class Notes:
    """What is found while an attempt is checked."""

    mismatches: list[Mismatch] = field(default_factory=list)
    unchecked: list[Mismatch] = field(default_factory=list)
    prompts: int = 0
    requests: int = 0
    replies: int = 0
    images: int = 0

    def of(self, row: Row) -> "CallNotes":
        """For one call."""
        return CallNotes(self, row)


@dataclass(frozen=True)
class CallNotes:
    """What is found of one call."""

    all: Notes
    row: Row

    def wrong(self, what: str, detail: str) -> None:
        """It does not follow from the records."""
        self.all.mismatches.append(Mismatch(self.row["step"], self.row["parse_attempt"], what, detail))

    def unknown(self, what: str, detail: str) -> None:
        """It could not be checked."""
        self.all.unchecked.append(Mismatch(self.row["step"], self.row["parse_attempt"], what, detail))

    def compare(self, wanted: dict[str, Any], found: dict[str, Any], again: str) -> bool:
        """Whether all of `wanted` is in `found`; what is not is noted."""
        different = [name for name, value in wanted.items() if name not in found or value != found[name]]
        for name in different:
            self.wrong(name, f"{again} it is {wanted[name]!r:.200}, recorded is {found.get(name)!r:.200}")
        return not different
