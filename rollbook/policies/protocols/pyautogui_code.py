"""Protocols of models that write pyautogui code under the headings Thought, Action and Code."""

from dataclasses import dataclass
from typing import Any

from rollbook.policies.protocols.base import (
    Parsed,
    PastTurn,
    PromptInputs,
    ProtocolOptions,
    ReplyView,
    Size,
    failed,
    thinking_switch,
)
from rollbook.policies.protocols.conversation import Message, conversation, guidance_of
from rollbook.policies.protocols.coordinates import Projection
from rollbook.policies.protocols.pyautogui.code import Program, read_code
from rollbook.policies.protocols.pyautogui.source import BadCode
from rollbook.policies.protocols.sections import Section, sections_of, split_thinking

_SYSTEM = """You operate a Linux desktop to fulfil a task. At every step you see a screenshot and choose what to do.

Answer with exactly three sections, in this order:

## Thought:
What you see, how far the task is, and what should happen next.

## Action:
One sentence that names the next action.

## Code:
```python
the code of this action
```

Rules for the code:
- It is Python. The modules pyautogui and time are imported already. Every step runs by itself: variables are lost.
- Coordinates are {space}. Write them as plain numbers.
- The screen changes only when your code runs. Do no more than you can foresee from the screenshot.
- To wait for the desktop, write only computer.wait().
- When the task is fulfilled, write only computer.terminate(status="success").
- When the task cannot be fulfilled, write only computer.terminate(status="failure")."""

_FORM = "Reply again with the sections Thought, Action and Code. Put one fenced block of Python under Code."


@dataclass(frozen=True)
class CodeProtocol:
    """One protocol of this kind; see docs/reference/protocols.md for the meaning of the ids."""

    protocol_id: str
    parser_id: str
    options: ProtocolOptions
    key_names: bool
    """Normalise literal key names in the code, and refuse unknown ones."""
    name_limit: bool
    """Tell the model how many steps it has."""

    def tools(self) -> list[dict[str, Any]] | None:
        """None: the code is in the text."""
        return None

    def extra_body(self) -> dict[str, Any]:
        """The chat template's switch for thinking, where the contract sets it."""
        return thinking_switch(self.options)

    def render(self, inputs: PromptInputs) -> list[Message]:
        """See ModelProtocol.render."""

        def words(step: int) -> str:
            limit = f" of at most {inputs.max_steps}" if self.name_limit else ""
            return f"You are currently on Step {step}{limit}."

        def actions_of(turn: PastTurn) -> list[str]:
            return self.parse(ReplyView(turn.response), inputs.screen, inputs.sent).actions

        projection = Projection(self.options.coordinate_type, inputs.screen, inputs.sent)
        return conversation(
            inputs,
            _SYSTEM.format(space=projection.words()),
            step_words=words,
            folded_text=_text_of,
            answer=lambda turn: [{"role": "assistant", "content": _text_of(turn)}],
            guidance=guidance_of(inputs, self.options, actions_of, _FORM),
        )

    def parse(self, reply: ReplyView, screen: Size, sent: Size) -> Parsed:
        """See ModelProtocol.parse: code comes from the one section headed Code, never from prose or thinking."""
        thinking, text = split_thinking(reply.content or "")
        sections = sections_of(text)
        thought, action = _joined(sections, "thought"), _joined(sections, "action")
        thought = thought or thinking or (reply.reasoning or "").strip()
        truncated = reply.finish_reason == "length"
        try:
            program = self._program(sections, truncated, Projection(self.options.coordinate_type, screen, sent))
        except BadCode as error:
            return failed(str(error), truncated=truncated, empty=not text.strip(), thought=thought, action=action)
        return Parsed(program.actions, program.terminal_action, thought=thought, action_text=action)

    def _program(self, sections: list[Section], truncated: bool, projection: Projection) -> Program:
        found = [section for section in sections if section.title == "code"]
        if len(found) != 1:
            raise BadCode("there is no Code section" if not found else f"there are {len(found)} Code sections, not 1")
        return read_code(_code(found[0], truncated), projection, key_names=self.key_names)


def _code(section: Section, truncated: bool) -> str:
    """The last fenced block, or the whole section without one. Raises BadCode for an unfinished one."""
    # A last block that is closed is whole, whatever was cut off after it.
    if truncated and not (section.blocks and section.blocks[-1].closed):
        raise BadCode("the code is not finished")
    code = section.blocks[-1].text if section.blocks else section.text
    # A line of code between single backticks.
    if not section.blocks and len(code) > 2 and code[0] == code[-1] == "`":
        code = code.strip("`")
    if not code.strip():
        raise BadCode("the Code section is empty")
    return code


def _joined(sections: list[Section], title: str) -> str:
    return "\n".join(section.text for section in sections if section.title == title and section.text)


def _text_of(turn: PastTurn) -> str:
    """Thought and Action of a past turn, never its code."""
    if turn.text is not None:
        return turn.text
    thinking, text = split_thinking(turn.response)
    sections = sections_of(text)
    return Parsed(thought=_joined(sections, "thought") or thinking, action_text=_joined(sections, "action")).kept_text
