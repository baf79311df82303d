"""Protocol of models that write pyautogui code in fenced blocks, without any sections."""

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
from rollbook.policies.protocols.sections import WORDS, Block, fenced, split_thinking

_SYSTEM = """You operate a Linux desktop to fulfil a task. At every step you see a screenshot and choose what to do.

First say in a sentence or two what you see and what you will do. Then give the code of it:

```python
the code of this action
```

- It is Python. The modules pyautogui and time are imported already. Every step runs by itself: variables are lost.
- Coordinates are {space}. Write them as plain numbers.
- The screen changes only when your code runs. Do no more than you can foresee from the screenshot.
- Instead of code, write WAIT to wait for the desktop, DONE when the task is fulfilled, FAIL when it cannot be."""

_FORM = "Reply again with one fenced block of Python, or with WAIT, DONE or FAIL alone."


@dataclass(frozen=True)
class PlainProtocol:
    """`pyautogui-plain-v1`; see docs/reference/protocols.md."""

    protocol_id: str
    parser_id: str
    options: ProtocolOptions

    def tools(self) -> list[dict[str, Any]] | None:
        """None: the code is in the text."""
        return None

    def extra_body(self) -> dict[str, Any]:
        """The chat template's switch for thinking, where the contract sets it."""
        return thinking_switch(self.options)

    def render(self, inputs: PromptInputs) -> list[Message]:
        """See ModelProtocol.render. Of past replies the prompt shows what was said, never the code."""

        def actions_of(turn: PastTurn) -> list[str]:
            return self.parse(ReplyView(turn.response), inputs.screen, inputs.sent).actions

        projection = Projection(self.options.coordinate_type, inputs.screen, inputs.sent)
        return conversation(
            inputs,
            _SYSTEM.format(space=projection.words()),
            step_words=lambda step: f"You are currently on Step {step} of at most {inputs.max_steps}.",
            folded_text=_text_of,
            answer=lambda turn: [{"role": "assistant", "content": _text_of(turn)}],
            guidance=guidance_of(inputs, self.options, actions_of, _FORM),
        )

    def parse(self, reply: ReplyView, screen: Size, sent: Size) -> Parsed:
        """See ModelProtocol.parse: every fenced block in order, or one of the three words alone; never prose."""
        thinking, text = split_thinking(reply.content or "")
        blocks, said = fenced(text)
        thought = said or thinking or (reply.reasoning or "").strip()
        truncated = reply.finish_reason == "length"
        try:
            program = self._program(blocks, text, truncated, Projection(self.options.coordinate_type, screen, sent))
        except BadCode as error:
            return failed(str(error), truncated=truncated, empty=not text.strip(), thought=thought)
        return Parsed(program.actions, program.terminal_action, thought=thought)

    def _program(self, blocks: list[Block], text: str, truncated: bool, projection: Projection) -> Program:
        word = text.strip()
        if not blocks and word not in WORDS:
            raise BadCode("there is no fenced block of code")
        # A last block that is closed is whole, whatever was cut off after it.
        if truncated and not (blocks and blocks[-1].closed):
            raise BadCode("the code is not finished")
        actions: list[str] = []
        for code in [block.text for block in blocks] or [word]:
            program = read_code(code, projection, key_names=True)
            actions += program.actions
            if program.terminal_action:
                return Program(actions, program.terminal_action)
        return Program(actions, None)


def _text_of(turn: PastTurn) -> str:
    """The text of a past turn, without its code."""
    if turn.text is not None:
        return turn.text
    thinking, text = split_thinking(turn.response)
    return Parsed(thought=fenced(text)[1] or thinking).kept_text
