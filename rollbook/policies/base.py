"""The seam between the runner and whatever decides: facts in, facts out.

A policy reports what was said and whether it parsed. It never invents DONE or FAIL, never masks, and knows nothing of
step limits, deadlines or scores. Each of its calls is committed through the `CallLog` it is
given before the next one is made, so that a crash costs no answer and adds none.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ValidationError

from models.contract import PolicyContract, Purpose
from models.episode import Observation
from models.explain import explain
from models.outcome import TerminalAction
from models.policy import PolicySpec
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.records import AttemptContext, CallRecord
from rollbook.policies.client import ModelClients

if TYPE_CHECKING:
    from rollbook.policies.scripted import Scripts

WAIT = "WAIT"
TERMINAL: dict[str, TerminalAction] = {"DONE": "DONE", "FAIL": "FAIL"}


@dataclass(frozen=True)
class Turn:
    """The step that a policy decides."""

    step: int
    """From 1."""
    context: AttemptContext
    observation: Observation
    read_artifact: Callable[[str], Awaitable[bytes]]
    """Bytes of an artifact by digest, for instance the screenshot's."""
    time_left: Callable[[], float] = lambda: math.inf
    """Seconds until the caller stops waiting: no call may begin that could outlast it."""
    budget_s: float = math.inf
    """Seconds of answered calls that the episode's deadline leaves for this step."""

    @property
    def instruction(self) -> str:
        """The task's instruction."""
        return str(self.context.task["instruction"])


@dataclass(frozen=True)
class Answer:
    """One call of a policy: what it said, and what is kept of it as evidence."""

    actions: list[str] = field(default_factory=list)
    """pyautogui code or WAIT, in order; never DONE or FAIL."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    """An ending of the closed vocabulary by the model's own output, for instance `model_response_unparseable`."""
    response: bytes | None = None
    """The raw answer, kept as evidence."""
    response_media_type: str = "application/json"
    model_name: str = ""
    completed: bool = True
    """A reply arrived."""
    parse_error: str | None = None
    failure_kind: str | None = None
    """Kind of a model failure, or model_timeout."""
    finish_reason: str | None = None
    prompt: bytes | None = None
    """The request as sent, images as references."""
    image: bytes | None = None
    """The current screen as sent, PNG."""
    tokens: bytes | None = None
    model_version: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float | None = None
    telemetry: dict[str, Any] | None = None
    said: dict[str, Any] | None = None

    @property
    def accepted(self) -> bool:
        """It parsed and is acted upon."""
        return self.completed and self.failure_kind is None and self.policy_stop_reason is None


class CallLog(Protocol):
    """The calls of one attempt, as the ledger holds them."""

    async def until_now(self) -> list[CallRecord]:
        """Every committed call up to and including this step, in order."""
        ...

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> CallRecord:
        """Commit a call of this step; the call that was committed first under this number is what counts."""
        ...


class Policy(Protocol):
    """Decides one step."""

    async def decide(self, turn: Turn, log: CallLog) -> CallRecord:
        """The committed call that decides this step; raises ModelCallFailed or ModelTimeout when there is none.

        The caller has made sure that no call decides the step yet; others of the step may be in the log.
        """
        ...


class Sources(Protocol):
    """The worker's services, as far as policies are made from them."""

    @property
    def ledger(self) -> Ledger:
        """Source of registered scripts and specs."""
        ...

    @property
    def scripts(self) -> "Scripts":
        """Scripts that were read before."""
        ...

    @property
    def models(self) -> ModelClients:
        """Clients of the endpoint profiles that this worker has."""
        ...


@dataclass(frozen=True)
class Lookup:
    """Sources for the names in a spec, when its batch is registered or tried."""

    purpose: Purpose
    ledger: Ledger | None
    """None where a kind says that it needs none."""
    endpoints: list[str] | None = None
    """Names of the endpoint profiles that the workers have; None leaves an endpoint unchecked."""
    register: bool = False
    """Keep what the names mean, for instance a script; without it nothing is written."""

    def require_ledger(self) -> Ledger:
        """The ledger of a kind that `reads_ledger`."""
        assert self.ledger is not None
        return self.ledger


Spec = TypeVar("Spec", bound=PolicySpec)


class PolicyKind(Generic[Spec]):
    """One kind of policy: how its specs are read, what they mean, and what decides the steps.

    An installed package registers an instance under the entry point group `rollbook.policy_kinds`; the name of its
    kind has a dot in it (`package.kind`), and its contract has no name that Rollbook's own kinds use.
    """

    name: ClassVar[str]
    """The `kind` of a spec."""
    spec: type[Spec]
    """The model of its specs."""
    calls_model: ClassVar[bool] = False
    """Its calls have prompts and replies of the model protocols: verification renders and reads them again."""
    reads_ledger: ClassVar[bool] = False
    """`resolve` needs the ledger."""

    def read(self, policy: PolicySpec) -> Spec:
        """The policy of a spec as this kind's model; raises InvalidInput that names the field."""
        if isinstance(policy, self.spec):
            return policy
        try:
            return self.spec.model_validate(policy.model_dump())
        except ValidationError as error:
            raise InvalidInput(explain(error, self.spec, prefix="policy.")) from error

    async def resolve(self, policy: Spec, lookup: Lookup) -> dict[str, Any]:
        """Members of `Resolved`; raises InvalidInput that names the field."""
        return {}

    async def probe(self, policy: Spec, sources: "Sources") -> str:
        """Ask once, before anything is planned, whether the steps can be decided; returns a notice, empty for none.

        Raises InvalidInput for what waiting cannot change, such as a key that is not accepted.
        """
        return ""

    async def find_names(self, policy: Spec, ledger: Ledger) -> dict[str, Any]:
        """Those members that every client can look up, not only a worker."""
        return {}

    def pin(self, policy: dict[str, Any], contract: PolicyContract) -> dict[str, Any]:
        """The spec's policy with its names pinned to what they mean in `contract`, the policy of the contract."""
        return policy

    async def open(self, context: AttemptContext, sources: Sources) -> Policy:
        """The policy of an attempt; raises ConfigError when this worker lacks something it needs."""
        raise NotImplementedError


def split_terminal(actions: list[str]) -> tuple[list[str], TerminalAction | None]:
    """Actions up to the first DONE or FAIL, and which of them it was; what follows it is never run."""
    for position, action in enumerate(actions):
        if terminal := TERMINAL.get(action.strip()):
            return actions[:position], terminal
    return actions, None


def summary_of(answer: Answer) -> str:
    """One short line for people, for instance `click(412, 88)`."""
    if answer.policy_stop_reason or answer.failure_kind:
        return answer.policy_stop_reason or answer.failure_kind or ""
    words = [" ".join(action.split()).replace("pyautogui.", "") for action in answer.actions]
    if answer.terminal_action:
        words.append(answer.terminal_action)
    line = "; ".join(words)
    return (line if len(line) <= 80 else line[:79] + "…") or "no action"
