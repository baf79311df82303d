"""Looks an endpoint over before a batch depends on it: models, one and three images, token evidence."""

import hashlib
import io
from dataclasses import dataclass, field

from PIL import Image

from rollbook.errors import InfraError, InvalidInput
from rollbook.policies.client.client import ModelClient
from rollbook.policies.client.profile import ApiStyle, EndpointProfile
from rollbook.policies.client.request import ChatRequest, Sampling, media_url

COLOURS = ("red", "green", "blue")
SIDE = 224
"""Pixels; every vision model takes an image of this size."""
_REFUSED = "the request fails"
SHORT = Sampling(max_output_tokens=64, temperature=0.0)

STYLES: tuple[ApiStyle, ...] = ("vllm", "sglang")
"""Ways to ask for token ids."""


@dataclass(frozen=True)
class Check:
    """One request of the probe."""

    name: str
    ok: bool
    said: str
    """The model's words, or the error."""
    latency_s: float | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None


@dataclass
class ProbeReport:
    """Abilities of the endpoint."""

    endpoint: str
    base_url: str
    api: ApiStyle
    models: list[str] = field(default_factory=list)
    model: str = ""
    """The model that was asked."""
    model_version: str | None = None
    checks: list[Check] = field(default_factory=list)
    token_evidence: dict[str, list[str]] = field(default_factory=dict)
    """Per way of asking: why the evidence is incomplete; an empty list when it is complete."""
    advice: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every request was answered. Missing token evidence is not a failure: evaluation needs none."""
        return bool(self.checks) and all(check.ok for check in self.checks)


async def probe(profile: EndpointProfile, model: str | None = None, timeout_s: float = 120.0) -> ProbeReport:
    """Ask the endpoint. Failures are in the report; nothing is raised for them."""
    report = ProbeReport(profile.name, profile.base_url, profile.api)
    client = ModelClient(profile)
    try:
        if await _list_models(client, report, model, timeout_s):
            for count in (1, 3):
                await _ask(client, report, count, timeout_s)
            await _try_other_styles(profile, report, timeout_s)
    finally:
        await client.close()
    return report


async def _list_models(client: ModelClient, report: ProbeReport, model: str | None, timeout_s: float) -> bool:
    """True when there is a model to ask. A list is a courtesy: with `model` given it may fail."""
    try:
        report.models = await client.models(timeout_s)
        report.checks.append(Check("models", True, ", ".join(report.models) or "none"))
    except InfraError as error:
        report.checks.append(Check("models", model is not None, str(error)))
    if model is None and len(report.models) > 1:
        report.advice.append(f"several models are served; {report.models[0]} was asked, --model chooses another")
    report.model = model or next(iter(report.models), "")
    if model is not None and report.models and model not in report.models:
        report.advice.append(f"{model} is not among the models that the endpoint lists")
    return bool(report.model)


async def _ask(client: ModelClient, report: ProbeReport, images: int, timeout_s: float) -> None:
    name = f"{images} image{'s' if images > 1 else ''}"
    try:
        reply = await client.chat(_picture_request(report.model, images, timeout_s))
    except (InfraError, InvalidInput) as error:
        report.checks.append(Check(name, False, str(error)))
        if images > 1 and report.checks[-2].ok:
            report.advice.append(
                "one image is accepted and three are not: raise the server's limit of images per prompt, "
                "or let the history policy keep one"
            )
        return
    report.model_version = reply.model_version
    report.token_evidence[client.profile.api] = list(reply.token_evidence_problems)
    said = reply.content or reply.reasoning or "(nothing)"
    tokens = reply.tokens("prompt")
    report.checks.append(Check(name, True, said, round(reply.latency_s, 3), tokens, reply.finish_reason))


async def _try_other_styles(profile: EndpointProfile, report: ProbeReport, timeout_s: float) -> None:
    """Try the other ways to ask, when the profile's own is refused or yields no token evidence."""
    refused = any(check.name == "1 image" and not check.ok for check in report.checks)
    if report.token_evidence.get(profile.api) == []:
        return
    for style in ("openai", *STYLES) if refused else STYLES:
        if style == profile.api:
            continue
        problems = report.token_evidence[style] = await _problems(profile, style, report.model, timeout_s)
        if not problems:
            report.advice.append(f"api = '{style}' in the profile gives complete token evidence")
            return
        if style == "openai" and problems != [_REFUSED]:
            report.advice.append("api = 'openai' in the profile is what this endpoint understands")
    if not refused:
        report.advice.append("no token evidence: good for evaluation, not for training")


async def _problems(profile: EndpointProfile, style: ApiStyle, model: str, timeout_s: float) -> list[str]:
    client = ModelClient(profile.model_copy(update={"api": style}))
    try:
        reply = await client.chat(_picture_request(model, 1, timeout_s))
        return list(reply.token_evidence_problems)
    except InfraError:
        return [_REFUSED]
    finally:
        await client.close()


def _picture_request(model: str, images: int, timeout_s: float) -> ChatRequest:
    pictures = [_picture(colour) for colour in COLOURS[:images]]
    media = {hashlib.sha256(picture).hexdigest(): picture for picture in pictures}
    content = [{"type": "image_url", "image_url": {"url": media_url(sha256)}} for sha256 in media]
    question = {"type": "text", "text": "Name the colour of each image, in order. Answer with the names only."}
    messages = [{"role": "user", "content": [*content, question]}]
    return ChatRequest(model=model, messages=messages, media=media, sampling=SHORT, timeout_s=timeout_s)


def _picture(colour: str) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), colour).save(target, "PNG")
    return target.getvalue()
