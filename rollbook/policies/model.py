"""A model decides: plan the history, render the prompt, call, parse; again while a step has tries left.

Every call is a row of its own, committed before the next one is sent. What a step does next follows from its rows
alone, so a worker that takes over after a crash continues where the other one was.
"""

import asyncio
import functools
import itertools
import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from models.contract import Purpose
from models.identity import canonical_json
from models.policy import OpenAIPolicy
from rollbook.errors import DeadlinePassed, InvalidInput, ModelCallFailed, ModelRefused, ModelTimeout
from rollbook.ledger.records import AttemptContext, CallRecord
from rollbook.policies.agent import OVERFLOW, TIMEOUT, TRANSPORT, Agent, AgentTask, PlannedCall, Screen
from rollbook.policies.base import Answer, CallLog, Lookup, PolicyKind, Sources, Turn
from rollbook.policies.call_log import Unstorable, answered_s, finish_despite_cancel
from rollbook.policies.client import (
    AuthFailed,
    BadRequest,
    CallError,
    ChatReply,
    ChatRequest,
    ContextOverflow,
    Exchanged,
    ModelClient,
    OutOfTime,
    RateLimited,
    TransportFailed,
)
from rollbook.policies.client.faults import OVERFLOW as OVERFLOW_WORDS
from rollbook.policies.client.request import MEDIA_SCHEME, OWNED, request_body, serialise
from rollbook.policies.imaging import seen
from rollbook.policies.protocols.base import ModelProtocol, Parsed, ReplyView, failed
from rollbook.policies.protocols.registry import PARSERS, known_protocol

LONGEST_PAUSE_S = 60.0
"""Between two tries after transport failures: 1, 2, 4, … seconds, at most this."""
PROBE_S = 15.0
"""Time limit of the probe at registration."""
COMMIT_S = 30.0
"""Seconds that must be left when a call's deadline passes: its row has to be committed."""
AT_ONCE = 256 * 1024
"""Bytes of a reply that are read in the event loop; a larger one is read in a thread."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _SentCall:
    """A call that was sent, and what it was made of."""

    planned: PlannedCall
    screen: Screen
    image: bytes
    request: ChatRequest
    prompt: bytes
    latency_s: float


class OpenAIKind(PolicyKind[OpenAIPolicy]):
    """Kind `openai`: a model behind a chat-completions endpoint."""

    name = "openai"
    spec = OpenAIPolicy
    calls_model = True

    async def resolve(self, policy: OpenAIPolicy, lookup: Lookup) -> dict[str, Any]:
        """The parser of the protocol; the other purpose's agent must be possible too."""
        if lookup.endpoints is not None and policy.endpoint not in lookup.endpoints:
            names = ", ".join(lookup.endpoints) or "none; see ROLLBOOK_ENDPOINTS_FILE"
            raise InvalidInput(f"policy.endpoint: no endpoint profile {policy.endpoint!r} here (there are: {names})")
        parsers: dict[Purpose, str] = {"train": parser_of(policy, "train"), "eval": parser_of(policy, "eval")}
        return {"parser_id": parsers[lookup.purpose]}

    async def probe(self, policy: OpenAIPolicy, sources: Sources) -> str:
        """List the endpoint's models. A server that is away is waited for; see the pump."""
        if policy.endpoint not in sources.models.names:  # another worker has the profile
            return ""
        name = f"endpoint {policy.endpoint!r}"
        try:
            listed = await sources.models.get(policy.endpoint).models(PROBE_S)
        except AuthFailed as error:
            raise InvalidInput(f"policy.endpoint: {name}: {error}") from error
        except BadRequest as error:
            return f"{name} does not list its models: {error}; is its base_url right?"
        except (CallError, ModelTimeout):
            return ""
        if policy.model in listed:
            return ""
        return f"{name} does not list the model {policy.model!r}, it lists: {', '.join(listed[:5]) or 'none'}"

    async def open(self, context: AttemptContext, sources: Sources) -> "ModelPolicy":
        """A client of the endpoint that the newest launch names: the contract does not depend on where it is served."""
        endpoint = (await sources.ledger.launched_spec(context.batch_id))["policy"]["endpoint"]
        return ModelPolicy(context, sources.models.get(endpoint))


def parser_of(policy: OpenAIPolicy, purpose: Purpose) -> str:
    """The parser of the policy's protocol for a purpose; raises InvalidInput for what this version cannot send."""
    agent, sampling = policy.agent(purpose)
    if taken := sorted(OWNED & sampling["extra"].keys()):
        raise InvalidInput(f"policy.sampling.extra: {', '.join(taken)} cannot be set here")
    return PARSERS[known_protocol(agent["protocol_id"], "policy.protocol")]


class ModelPolicy:
    """Asks the contract's model through one endpoint."""

    def __init__(self, context: AttemptContext, client: ModelClient) -> None:
        self._context = context
        self._client = client
        self._agent = Agent(context.contract)
        self._task = AgentTask(context.rollout_key, context.attempt_index, str(context.task["instruction"]))
        self._timeout_s = float(context.contract.limits.model_timeout_s)

    async def decide(self, turn: Turn, log: CallLog) -> CallRecord:
        """The call that decides the step.

        Raises ModelTimeout; ModelRefused; ModelCallFailed when no server worked for too long; DeadlinePassed when the
        answers have taken the time that the episode had left; RateLimited, which leaves no row; OutOfTime when the
        caller would not wait for the end of another call.
        """
        calls = await log.until_now()
        png = await turn.read_artifact(turn.observation.screenshot.sha256)
        screen, image = await asyncio.to_thread(seen, png, self._agent.options.max_image_pixels)
        while True:
            failures = self._check(calls, turn.step)
            if failures:
                await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))
            planned = self._agent.next_call(self._task, turn.step, screen, calls)
            budget_s = turn.budget_s - answered_s(calls, turn.step)
            if budget_s <= 0:
                raise DeadlinePassed(f"step {turn.step}: the answers have taken the time that the episode had left")
            stored = await self._ask(turn, log, planned, screen, image, min(self._timeout_s, budget_s))
            if stored.decides:
                return stored
            calls.append(stored)

    def _check(self, calls: list[CallRecord], step: int) -> int:
        """Raises when the last fact of the step ends it; else how many transport failures came last in a row."""
        ours = [call for call in calls if call.step == step]
        if not ours:
            return 0
        last, error = ours[-1], ours[-1].parse_error or ours[-1].summary
        if last.failure_kind == TIMEOUT:
            raise DeadlinePassed(error) if (last.telemetry or {}).get("deadline") else ModelTimeout(error)
        if last.failure_kind != TRANSPORT:
            return 0
        if not (last.telemetry or {}).get("repeatable"):
            raise ModelRefused(error)
        if self._agent.exhausted(calls, step):
            raise ModelCallFailed(error)
        failed = list(itertools.takewhile(lambda call: call.failure_kind == TRANSPORT, reversed(ours)))
        first_at, last_at = ((call.telemetry or {}).get("failed_at", 0.0) for call in (failed[-1], last))
        # by the time of the last try, not by now: a worker that was suspended tries again before it gives up
        if last_at - first_at >= self._client.profile.patience_s:
            raise ModelCallFailed(f"{error}; tried {len(failed)} times in {last_at - first_at:.0f} s")
        return len(failed)

    async def _ask(
        self, turn: Turn, log: CallLog, planned: PlannedCall, screen: Screen, image: bytes, timeout_s: float
    ) -> CallRecord:
        """Make one call and commit what came of it: from the answer on, no cancel comes in between."""
        media = await self._media(turn, planned, screen, image)
        spare_s = turn.time_left() - timeout_s - COMMIT_S
        if spare_s < 0:
            raise OutOfTime(f"step {turn.step}: no time is left for call {planned.number} of {timeout_s:g} s")
        request = ChatRequest(
            model=self._agent.model,
            messages=planned.messages,
            media=media,
            tools=planned.tools,
            sampling=planned.sampling,
            timeout_s=timeout_s,
            correlation=self._correlation(turn.step, planned),
            queue_s=None if math.isinf(spare_s) else spare_s,
        )
        prompt = serialise(request_body(request, self._client.profile.api))
        began = time.monotonic()

        def sent_call() -> _SentCall:
            return _SentCall(planned, screen, image, request, prompt, time.monotonic() - began)

        try:
            exchanged = await self._client.send(request)
        except (CallError, ModelTimeout) as error:
            return await finish_despite_cancel(log.commit(self._unanswered(sent_call(), error), planned.number))
        return await finish_despite_cancel(self._keep(log, sent_call(), exchanged))

    async def _keep(self, log: CallLog, sent: _SentCall, exchanged: Exchanged) -> CallRecord:
        """Whatever was answered becomes one row, with the answer as it came. Raises RateLimited, which leaves none."""
        read = functools.partial(self._answered, sent, exchanged)
        answer = await asyncio.to_thread(read) if len(exchanged.raw) > AT_ONCE else read()
        try:
            return await log.commit(answer, sent.planned.number)
        except Unstorable as error:
            failure = TransportFailed(f"the reply cannot be stored: {error}", status=200, body=exchanged.raw)
            return await log.commit(self._unanswered(sent, failure), sent.planned.number)

    def _answered(self, sent: _SentCall, exchanged: Exchanged) -> Answer:
        try:
            return self._replied(sent, exchanged.reply())
        except RateLimited:
            raise
        except CallError as error:
            return self._unanswered(sent, error)
        except Exception as error:  # a fault in Rollbook: without a row the call would be repeated for ever
            logger.exception("a reply cannot be read")
            said = f"the reply cannot be read ({type(error).__name__}: {error})"
            return self._unanswered(sent, TransportFailed(said, status=200, body=exchanged.raw))

    def _unanswered(self, sent: _SentCall, error: CallError | ModelTimeout) -> Answer:
        if isinstance(error, ContextOverflow):
            return self._overflow(sent, error)
        if isinstance(error, CallError):
            return self._failed(sent, error, TRANSPORT, repeatable=error.repeatable)
        return self._failed(sent, error, TIMEOUT, repeatable=False)

    async def _media(self, turn: Turn, planned: PlannedCall, screen: Screen, image: bytes) -> dict[str, bytes]:
        wanted = set(media_of(planned.messages)) - {screen.media.sha256}
        read = await asyncio.gather(*(turn.read_artifact(sha256) for sha256 in sorted(wanted)))
        return dict(zip(sorted(wanted), read, strict=True)) | {screen.media.sha256: image}

    def _correlation(self, step: int, planned: PlannedCall) -> dict[str, object]:
        context, agent = self._context, self._agent
        return {
            "run_id": context.batch_id,
            "adapter": "rollbook",
            "rollout_purpose": context.contract.purpose,
            "sampling_event_id": context.sampling_event_id,
            "source_group_id": context.source_group_id,
            "execution_id": context.execution_id,
            "rollout_id": context.trajectory_rollout_id,
            "rollout_key": context.rollout_key,
            "group_id": context.group_id,
            "rollout_index": context.rollout_index,
            "attempt_index": context.attempt_index - 1,
            "task_id": context.task_id,
            "domain": context.domain,
            "task_attempt": context.attempt_index,
            "step": step,
            "parse_attempt": planned.number,
            "agent_contract_id": context.contract.agent_contract_id,
            "history_policy_id": agent.history.policy_id,
            "model_protocol_id": agent.protocol.protocol_id,
        }

    def _replied(self, sent: _SentCall, reply: ChatReply) -> Answer:
        parsed = parsed_of(self._agent.protocol, reply, sent.screen)
        failed = parsed.failure_kind is not None
        return Answer(
            actions=[] if failed else parsed.actions,
            terminal_action=None if failed else parsed.terminal_action,
            policy_stop_reason=parsed.stop_reason if sent.planned.last_sample else None,
            response=reply.raw,
            model_name=self._agent.model,
            parse_error=parsed.error if failed else None,
            failure_kind=parsed.failure_kind,
            finish_reason=reply.finish_reason,
            prompt=reply.request,
            image=sent.image,
            tokens=tokens_of(reply),
            model_version=reply.model_version,
            prompt_tokens=reply.tokens("prompt"),
            completion_tokens=reply.tokens("completion"),
            latency_s=reply.latency_s,
            telemetry=self._telemetry(sent)
            | {
                "served_model": reply.model_name,
                "queued_s": reply.queued_s,
                "usage": reply.usage,
                "sent_digest": reply.sent_digest,
                "token_problems": list(reply.token_evidence_problems),
            }
            | ({} if reply.normalization_error is None else {"normalization_error": reply.normalization_error}),
            said=said_of(reply, parsed),
        )

    def _overflow(self, sent: _SentCall, error: ContextOverflow) -> Answer:
        """The context did not fit: fewer images, planned again from the state that the step began with.

        A body that is too large although it cannot shrink is refused by a limit of the server or of a proxy, not by
        the model's context: no outcome of the policy.
        """
        smaller = sent.planned.smaller
        if smaller is None and error.status == 413 and not OVERFLOW_WORDS.search(str(error)):
            return self._failed(sent, error, TRANSPORT, repeatable=False)
        return Answer(
            policy_stop_reason="model_context_overflow" if smaller is None else None,
            response=error.body or None,
            model_name=self._agent.model,
            completed=False,
            parse_error=str(error),
            failure_kind=OVERFLOW,
            prompt=sent.prompt,
            image=sent.image,
            latency_s=sent.latency_s,
            telemetry=self._telemetry(sent) | {"status": error.status, "next_max_images": smaller},
        )

    def _failed(self, sent: _SentCall, error: CallError | ModelTimeout, kind: str, *, repeatable: bool) -> Answer:
        status, body = (error.status, error.body) if isinstance(error, CallError) else (None, b"")
        return Answer(
            response=body or None,
            model_name=self._agent.model,
            completed=False,
            parse_error=str(error),
            failure_kind=kind,
            prompt=sent.prompt,
            image=sent.image,
            latency_s=sent.latency_s,
            telemetry=self._telemetry(sent)
            | {
                "status": status,
                "error_type": type(error).__name__,
                "repeatable": repeatable,
                "failed_at": time.time(),
            }
            # cut by the episode's deadline, which came before the call's own
            | ({"deadline": True} if kind == TIMEOUT and sent.request.timeout_s < self._timeout_s else {}),
        )

    def _telemetry(self, sent: _SentCall) -> dict[str, Any]:
        planned, sampling = sent.planned, sent.planned.sampling
        return {
            "api": self._client.profile.api,
            "history": planned.plan.telemetry,
            "max_images": planned.max_images,
            "image": sent.screen.to_json(),
            "media": media_of(planned.messages),
            "temperature": sampling.temperature,
            "seed": sampling.seed,
        }


def media_of(messages: list[dict[str, Any]]) -> list[str]:
    """Digests of the images of a prompt, in order, with repeats."""
    found = []
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if part.get("type") == "image_url":
                found.append(str(part["image_url"]["url"]).removeprefix(MEDIA_SCHEME))
    return found


def parsed_of(protocol: ModelProtocol, reply: ChatReply, screen: Screen) -> Parsed:
    """The reply as the protocol reads it. A reply that is not of the API's form is rejected, whatever it contains."""
    view = ReplyView(reply.content, reply.reasoning, reply.tool_calls, reply.finish_reason)
    parsed = protocol.parse(view, screen.size, screen.sent)
    if reply.normalization_error is None or parsed.failure_kind is not None:
        return parsed
    return failed(
        reply.normalization_error, truncated=False, empty=False, thought=parsed.thought, action=parsed.action_text
    )


def said_of(reply: ChatReply, parsed: Parsed) -> dict[str, Any]:
    """The parts of a reply that later prompts, and people, need."""
    return {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "tool_calls": reply.tool_calls,
        "thought": parsed.thought,
        "action_text": parsed.action_text,
        "kept_text": parsed.kept_text,
    }


def tokens_of(reply: ChatReply) -> bytes | None:
    """The token arrays, also when some are missing; None when there is none."""
    arrays: dict[str, Any] = {
        "prompt_token_ids": reply.prompt_token_ids,
        "sampled_token_ids": reply.sampled_token_ids,
        "sampled_logprobs": reply.sampled_logprobs,
    }
    if reply.routed_experts is not None:  # absent otherwise: the digests of replies without it stay what they were
        arrays["routed_experts"] = reply.routed_experts
    return None if all(value is None for value in arrays.values()) else canonical_json(arrays).encode()
