"""The common form of every protocol's prompt: the places of images, folded turns and guidance.

One system message. Then, for every turn that is still an image, a user message with the image and a text, followed
by what the model answered. Turns that became text are gathered in one block, which is part of the next image turn
after the gap. The current observation comes last.
"""

from collections.abc import Callable, Sequence
from typing import Any

from models.sanitize import clean_text
from rollbook.policies.protocols.base import MediaRef, PastTurn, PromptInputs, ProtocolOptions

Message = dict[str, Any]

HISTORY_HEADING = "# Previous History Actions:"

CHECKLIST = """Before you declare the task done, look at the screenshot and make sure that:
- every part of the task is fulfilled, down to names, places and formats;
- what had to be saved is saved, under the right name;
- no dialog is open that still waits for an answer."""


def conversation(
    inputs: PromptInputs,
    system: str,
    *,
    step_words: Callable[[int], str],
    folded_text: Callable[[PastTurn], str],
    answer: Callable[[PastTurn], list[Message]],
    guidance: Sequence[str],
) -> list[Message]:
    """The messages of a prompt. `answer` gives the messages that follow a past image turn, `guidance` what is said
    with the current observation only. Raises ValueError when plan and turns contradict each other."""
    _check(inputs)
    messages: list[Message] = [{"role": "system", "content": system}]
    folded: list[PastTurn] = []
    # The plan has one disposition more, that of the current observation.
    for turn, disposition in zip(inputs.turns, inputs.plan.dispositions, strict=False):
        if disposition == "text":
            folded.append(turn)
            continue
        text = _turn_text(inputs.instruction, folded, folded_text, step_words(turn.step))
        messages += [_observation(turn.image, text), *answer(turn)]
        folded = []
    text = _turn_text(inputs.instruction, folded, folded_text, step_words(inputs.step))
    # Guidance is for this step alone: kept in past turns, it would make each prompt differ from the one before.
    messages.append(_observation(inputs.current, "\n\n".join([text, *guidance])))
    cleaned: list[Message] = _cleaned(messages)
    return cleaned


def _cleaned(value: Any) -> Any:
    """The text of a past reply, without characters that a request cannot carry."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _check(inputs: PromptInputs) -> None:
    turns = inputs.plan.completed_turns
    if len(inputs.turns) != turns or inputs.plan.dispositions[-1] != "live_image":
        raise ValueError(f"the history plan is for {turns} completed turns, there are {len(inputs.turns)}")
    steps = [turn.step for turn in inputs.turns] + [inputs.step]
    if steps != sorted(set(steps)):
        raise ValueError(f"steps must ascend: {steps}")


def _turn_text(
    instruction: str, folded: Sequence[PastTurn], folded_text: Callable[[PastTurn], str], step_words: str
) -> str:
    parts = [f"# Task:\n{instruction}"]
    if folded:
        parts.append("\n\n".join([HISTORY_HEADING, *(f"# Step {turn.step}:\n{folded_text(turn)}" for turn in folded)]))
    return "\n\n".join([*parts, step_words])


def _observation(image: MediaRef, text: str) -> Message:
    picture = {"type": "image_url", "image_url": {"url": f"media://{image.sha256}"}}
    return {"role": "user", "content": [picture, {"type": "text", "text": text}]}


def guidance_of(
    inputs: PromptInputs, options: ProtocolOptions, actions_of: Callable[[PastTurn], list[str]], form: str
) -> list[str]:
    """Guidance with the current observation: a warning of repetition, the checklist, and why the last reply failed."""
    parts = []
    if repeated := _repetitions(inputs, options, actions_of):
        parts.append(
            f"Note: the same action was taken {repeated} times lately. If it did not help, try something else."
        )
    if options.pre_done_checklist:
        parts.append(CHECKLIST)
    if inputs.feedback:
        parts.append(f"Your last reply could not be used: {inputs.feedback}\n{form}")
    return parts


def _repetitions(inputs: PromptInputs, options: ProtocolOptions, actions_of: Callable[[PastTurn], list[str]]) -> int:
    """Number of times that the newest actions occur among the last turns; 0 below the threshold."""
    threshold = options.repeated_action_warning_threshold
    if not threshold or not inputs.turns:
        return 0
    recent = [actions_of(turn) for turn in inputs.turns[-options.repeated_action_window :]]
    # A turn without actions repeats nothing.
    count = recent.count(recent[-1]) if recent[-1] else 0
    return count if count >= threshold else 0
