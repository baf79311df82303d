"""The proof of one call, over a store in memory: what differs, and what cannot be known, are two things."""

import dataclasses
import hashlib
import io
import uuid
from typing import Any

import pytest
from PIL import Image, ImageChops

from models.contract import Resolved
from models.spec import contract_of, read_spec
from rollbook.errors import ArtifactError
from rollbook.evidence.verify import verify
from rollbook.ledger.reader import RecordedAttempt
from rollbook.ledger.records import CallRecord
from rollbook.policies import imaging
from rollbook.policies.agent import Agent, AgentTask
from rollbook.policies.client import ChatRequest
from rollbook.policies.client.request import request_body, serialise
from rollbook.policies.model import media_of

KEY = "b/os/t/0"


class Store:
    """Artifacts by digest."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def keep(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.kept[sha256] = data
        return sha256

    async def get(self, sha256: str) -> bytes:
        if sha256 not in self.kept:
            raise ArtifactError(f"artifact {sha256} is missing from the store")
        return self.kept[sha256]


def picture() -> bytes:
    """A screen with some detail in it."""
    out = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(out, format="PNG")
    return out.getvalue()


def one_call(store: Store, pixels: int | None) -> RecordedAttempt:
    """An attempt whose only call lost its connection."""
    policy = {"kind": "openai", "endpoint": "x", "model": "m", "options": {"max_image_pixels": pixels}}
    spec = read_spec({"task_set": "demo", "policy": policy})
    contract = contract_of(spec, Resolved(parser_id="pyautogui-code-parser-v1"))
    agent = Agent(contract)
    png = picture()
    seen, image = imaging.seen(png, pixels)
    planned = agent.next_call(AgentTask(KEY, 1, "do"), 1, seen, [])
    body = request_body(ChatRequest("m", planned.messages, tools=planned.tools, sampling=planned.sampling), "vllm")
    row: dict[str, Any] = {
        "policy_kind": "openai",
        "step": 1,
        "parse_attempt": 1,
        "actions": [],
        "terminal_action": None,
        "policy_stop_reason": None,
        "completed": False,
        "accepted": False,
        "decides": False,
        "summary": "transport_error",
        "parse_error": "reset",
        "failure_kind": "transport_error",
        "finish_reason": None,
        "prompt_sha256": store.keep(serialise(body)),
        "response_sha256": None,
        "image_sha256": store.keep(image),
        "tokens_sha256": None,
        "said": None,
        "telemetry": {
            "api": "vllm",
            "history": planned.plan.telemetry,
            "max_images": None,
            "image": seen.to_json(),
            "media": media_of(planned.messages),
            "temperature": planned.sampling.temperature,
            "seed": planned.sampling.seed,
        },
        "row_digest": "d",
    }
    rollout = {"rollout_key": KEY, "contract": contract.document, "document": {"instruction": "do"}}
    attempt = {"attempt_index": 1, "execution_id": uuid.UUID(int=7)}
    turns = [{"step": 0, "screenshot_sha256": store.keep(png)}]
    return RecordedAttempt(rollout, attempt, None, [CallRecord(**row)], turns, {})


@pytest.mark.parametrize("pixels", [None, 3000])
async def test_a_call_that_follows_from_the_records(pixels: int | None) -> None:
    store = Store()
    proof = await verify(one_call(store, pixels), store)
    assert proof.ok, proof
    assert (proof.prompts_equal, proof.images_equal) == (1, 1)


def again(change: Any) -> Any:
    """Scaling of another version."""
    original = imaging.scale_png

    def scale(png: bytes, **limits: Any) -> tuple[bytes, imaging.Size]:
        made, size = original(png, **limits)
        out = io.BytesIO()
        change(Image.open(io.BytesIO(made))).save(out, format="PNG", compress_level=1)
        return out.getvalue(), size

    return scale


def brighter(image: Image.Image) -> Image.Image:
    return image.point([min(255, level + 2) for level in range(256)] * 3)


@pytest.mark.parametrize("change", [lambda image: image, brighter])
async def test_a_library_that_scales_otherwise_proves_nothing(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    store = Store()
    attempt = one_call(store, 3000)
    monkeypatch.setattr(imaging, "scale_png", again(change))
    proof = await verify(attempt, store)
    assert (proof.ok, proof.mismatches, proof.prompts_equal, proof.images_equal) == (False, [], 1, 0)
    assert [one.what for one in proof.unchecked] == ["image"]
    assert "Pillow" in proof.unchecked[0].detail


@pytest.mark.parametrize("pixels", [None, 3000])
async def test_another_picture_is_a_difference(monkeypatch: pytest.MonkeyPatch, pixels: int | None) -> None:
    store = Store()
    attempt = one_call(store, pixels)
    monkeypatch.setattr(imaging, "scale_png", again(ImageChops.invert))
    proof = await verify(attempt, store)
    assert [one.what for one in proof.mismatches] == ["image"]
    assert proof.unchecked == []


async def test_what_is_not_scaled_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    attempt = one_call(store, None)
    monkeypatch.setattr(imaging, "scale_png", again(lambda image: image))
    assert [one.what for one in (await verify(attempt, store)).mismatches] == ["image"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"failure_kind": "unparseable"}, "failure_kind"),
        ({"actions": ["WAIT"]}, "actions"),
        ({"accepted": True}, "accepted"),
        ({"tokens_sha256": "0" * 64}, "tokens_sha256"),
        ({"said": {"content": "never"}}, "said"),
        ({"policy_stop_reason": "model_context_overflow"}, "policy_stop_reason"),
        ({"failure_kind": "context_overflow"}, "policy_stop_reason"),
    ],
)
async def test_a_call_without_a_reply_has_nothing_of_one(change: dict[str, Any], what: str) -> None:
    store = Store()
    attempt = one_call(store, None)
    attempt.calls[0] = dataclasses.replace(attempt.calls[0], **change)
    assert what in {one.what for one in (await verify(attempt, store)).mismatches}
