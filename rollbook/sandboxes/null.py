"""The do-nothing desktop of benchmarks and rehearsals: no guest, a one-pixel screenshot, and endings drawn from a
digest of the attempt, so that a rehearsal meets every kind of ending and can be repeated exactly.

Workers refuse it unless `ROLLBOOK_ALLOW_NULL_DESKTOP=1`; its scores carry the evaluator revision `null`.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from models.episode import DesktopRequest
from models.outcome import Cause, Infra, TerminalAction
from rollbook.desktop.driver import Driver, Files, Job, Keep, Note, Scored
from rollbook.desktop.journal import ActionResult
from rollbook.desktop.observe import RawObservation
from rollbook.errors import InvalidInput, SandboxLost, SetupFailed
from rollbook.guest.http import Endpoint, OnProgress
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.sandboxes.provider import (
    ImageInfo,
    IsOwner,
    ProviderKind,
    SandboxHandle,
    SandboxInfo,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    always_owner,
    ignore_progress,
    require_deployment,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
REVISION = "null"


class NullDriver:
    """Pretends. The attempt decides the ending when the contract's seed is not 0; with seed 0 everything works.

    Not the desktop's label: that one depends on the deployment, and a rehearsal would not end the same elsewhere.
    """

    def __init__(self, rollout_key: str, attempt_index: int) -> None:
        self._key = f"{rollout_key}:{attempt_index}"

    async def prepare(self, job: Job, note: Note, keep: Keep) -> Files:
        """Nothing to set up; one rehearsal in sixteen fails here."""
        if self._draw(job, "setup") == 0:
            raise SetupFailed("rehearsed: the setup failed")
        return {}

    async def observe(self, *, screen: tuple[int, int], accessibility_tree: bool, terminal: bool) -> RawObservation:
        """One transparent pixel."""
        return RawObservation(
            PIXEL, 1, 1, "" if accessibility_tree else None, "" if terminal else None, datetime.now(UTC)
        )

    async def perform(
        self, op_id: str, action: str, *, runtime: str, timeout_s: float, first_try: bool = False
    ) -> ActionResult:
        """Every action succeeds at once."""
        return ActionResult(op_id, "ok", None, False, None, 0.0)

    async def postconfig(self, job: Job, note: Note, keep: Keep) -> Files:
        """One rehearsal in sixteen loses its desktop here."""
        if self._draw(job, "postconfig") == 0:
            raise SandboxLost("rehearsed: the desktop died")
        return {}

    async def evaluate(self, job: Job, terminal_action: TerminalAction | None, note: Note) -> Scored:
        """1, 0, a fraction or an evaluator error, by the draw."""
        draw = self._draw(job, "score")
        if draw == 0:
            reason, detail = Infra.EVALUATOR_ERROR, "rehearsed: the evaluator raised"
            return Scored(None, reason=reason, detail=detail, evaluator_revision=REVISION, isolation="null")
        score = {1: 0.0, 2: 0.0, 3: 0.5, 4: 0.25}.get(draw % 6, 1.0)
        return Scored(score, score_type="float", evaluator_revision=REVISION, isolation="null")

    async def close(self) -> None:
        """Nothing to release."""

    def _draw(self, job: Job, what: str) -> int:
        """0..15 from the attempt and the seed; 5 (all is well) when the seed is 0."""
        seed = job.contract.seed
        return hashlib.sha256(f"{seed}:{self._key}:{what}".encode()).digest()[0] % 16 if seed else 5


class NullProvider(SandboxProvider):
    """Sandboxes that are only names."""

    name = "null"

    async def create(
        self, spec: SandboxSpec, on_progress: OnProgress = ignore_progress, is_owner: IsOwner = always_owner
    ) -> SandboxHandle:
        """Return a handle for the key."""
        return SandboxHandle(
            provider=self.name,
            sandbox_id=f"null-{spec.key}",
            key=spec.key,
            created_at=datetime.now(UTC),
            vnc_port=spec.vnc_port,
            isolation="full",
        )

    async def status(self, sandbox_id: str) -> SandboxStatus:
        """Always running."""
        return SandboxStatus.RUNNING

    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        """There is no guest to reach."""
        raise InvalidInput(f"port: the do-nothing desktop has no port {port}")

    async def stop(self, sandbox_id: str) -> None:
        """Nothing to stop."""

    async def stop_key(self, key: str) -> int:
        """Nothing to stop."""
        return 0

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Nothing runs."""
        require_deployment(labels)
        return []

    async def inspect_image(self, image: str) -> ImageInfo:
        """Accept every image: none is used."""
        return ImageInfo(image)

    async def driver(self, request: DesktopRequest, evaluator: EvaluatorEnv | None) -> Driver:
        """Return a driver that pretends."""
        return NullDriver(request.attempt.rollout_key, request.attempt.attempt_index)

    async def cause(self, sandbox_id: str, nonce: str) -> Cause:
        """Nothing proves anything: there is no guest that could have done it."""
        return Cause(kind="unknown", detail="there is no desktop")

    async def nonce(self, sandbox_id: str) -> str:
        """There is no guest that could be replaced."""
        return self.name


KIND = ProviderKind(
    name="null",
    open=lambda settings, timeout_s: NullProvider(),
    enabled=lambda settings: settings.allow_null_desktop,
    enable_hint="set ROLLBOOK_ALLOW_NULL_DESKTOP=1 for benchmarks and rehearsals",
    simulated_revision=REVISION,
)
