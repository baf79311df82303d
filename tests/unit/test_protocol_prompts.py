"""Prompts: where images, folded turns and guidance stand, and that their bytes do not change under an id."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.history import HistoryPolicy, replay_plan
from models.identity import digest
from models.policy import OpenAIPolicy
from rollbook.errors import InvalidInput
from rollbook.policies.model import parser_of
from rollbook.policies.protocols.base import MediaRef, ModelProtocol, PastTurn, PromptInputs, ReplyView, kept_text
from rollbook.policies.protocols.registry import PARSERS, protocol

SCREEN, SENT = (1920, 1080), (1280, 720)
FIXED_2 = HistoryPolicy(name="fixed", params={"keep_images": 2})
SINK = HistoryPolicy(name="sink_window", params={"sink": 1, "low_water": 3, "high_water": 3})


def image(turn: int) -> MediaRef:
    return MediaRef(f"media-{turn:024x}", f"{turn:064x}", *SENT)


def code_turn(step: int, code: str = "pyautogui.click(0.5, 0.5)") -> PastTurn:
    response = f"## Thought:\nThought {step}\n\n## Action:\nAction {step}\n\n## Code:\n```python\n{code}\n```"
    return PastTurn(step, image(step), kept_text(f"Thought {step}", f"Action {step}"), response)


def tool_turn(step: int) -> PastTurn:
    arguments = json.dumps({"action": "click", "coordinate": [0.5, step / 10]})
    call = {"id": f"server-{step}", "type": "function", "function": {"name": "computer", "arguments": arguments}}
    return PastTurn(step, image(step), None, f"Thought {step}", [call])


def inputs(policy: HistoryPolicy, turns: list[PastTurn], feedback: str | None = None) -> PromptInputs:
    plan = replay_plan(policy, len(turns))
    step = len(turns) + 1
    return PromptInputs("Open the file.", turns, image(step), plan, step, 15, feedback, SCREEN, SENT)


def shape(messages: list[dict[str, Any]]) -> list[str]:
    """Each message as role and the images and marks in it."""
    return [f"{one['role']} {' '.join(_marks(one))}".strip() for one in messages]


def _marks(message: dict[str, Any]) -> list[str]:
    if isinstance(message["content"], str):
        return []
    found = []
    for part in message["content"]:
        if part["type"] == "image_url":
            found.append(f"image {int(part['image_url']['url'].removeprefix('media://'), 16)}")
        else:
            found += ["history"] * part["text"].count("# Previous History Actions:")
    return found


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [one["content"] if isinstance(one["content"], str) else one["content"][1]["text"] for one in messages]


def test_folded_turns_stand_in_the_next_image_turn() -> None:
    messages = protocol("pyautogui-code-v1").render(inputs(FIXED_2, [code_turn(1), code_turn(2), code_turn(3)]))
    assert shape(messages) == ["system", "user image 3 history", "assistant", "user image 4"]
    assert texts(messages)[1] == (
        "# Task:\nOpen the file.\n\n# Previous History Actions:\n\n"
        "# Step 1:\n## Thought:\nThought 1\n\n## Action:\nAction 1\n\n"
        "# Step 2:\n## Thought:\nThought 2\n\n## Action:\nAction 2\n\n"
        "You are currently on Step 3 of at most 15."
    )
    assert texts(messages)[2] == "## Thought:\nThought 3\n\n## Action:\nAction 3"
    assert texts(messages)[3] == "# Task:\nOpen the file.\n\nYou are currently on Step 4 of at most 15."


def test_with_a_sink_the_folded_turns_stand_after_the_sink() -> None:
    messages = protocol("pyautogui-code-v1").render(inputs(SINK, [code_turn(step) for step in range(1, 6)]))
    assert shape(messages) == [
        *("system", "user image 1", "assistant"),
        *("user image 5 history", "assistant", "user image 6"),
    ]
    block = texts(messages)[3]
    assert [f"# Step {step}:" in block for step in range(1, 6)] == [False, True, True, True, False]


@pytest.mark.parametrize("protocol_id", PARSERS)
def test_the_first_prompt(protocol_id: str) -> None:
    messages = protocol(protocol_id).render(inputs(FIXED_2, []))
    assert shape(messages) == ["system", "user image 1"]
    assert "You are currently on Step 1" in texts(messages)[1]


def test_code_is_never_shown_again() -> None:
    """Neither in folded turns nor in image turns, and not when the kept text has to be read out of the reply."""
    turns = [code_turn(step, "pyautogui.click(7, 7)") for step in (1, 2, 3)]
    bare = [PastTurn(turn.step, turn.image, None, f"<think>hm</think>{turn.response}") for turn in turns]
    spoken = protocol("pyautogui-code-v1")
    assert spoken.render(inputs(FIXED_2, turns)) == spoken.render(inputs(FIXED_2, bare))
    assert "click(7, 7)" not in json.dumps(spoken.render(inputs(FIXED_2, turns)))


def test_tool_calls_are_repeated_under_our_ids_and_folded_in_words() -> None:
    messages = protocol("computer-tool-v1").render(inputs(FIXED_2, [tool_turn(1), tool_turn(2)]))
    assert shape(messages) == ["system", "user image 2 history", "assistant", "tool", "user image 3"]
    assert '# Step 1:\n## Thought:\nThought 1\n\n## Action:\nclick {"coordinate":[0.5,0.1]}' in texts(messages)[1]
    arguments = '{"action": "click", "coordinate": [0.5, 0.2]}'
    assert messages[2] == {
        "role": "assistant",
        "content": "Thought 2",
        "tool_calls": [
            {"id": "s00002000", "type": "function", "function": {"name": "computer", "arguments": arguments}}
        ],
    }
    assert messages[3] == {"role": "tool", "tool_call_id": "s00002000", "content": "carried out"}


@pytest.mark.parametrize(("protocol_id", "turn"), [("pyautogui-code-v1", code_turn), ("computer-tool-v1", tool_turn)])
def test_feedback_stands_with_the_current_observation_only(protocol_id: str, turn: Any) -> None:
    spoken = protocol(protocol_id)
    plain = spoken.render(inputs(FIXED_2, [turn(1)]))
    told = spoken.render(inputs(FIXED_2, [turn(1)], feedback="there is no Code section"))
    assert told[:-1] == plain[:-1]
    assert texts(told)[-1].startswith(texts(plain)[-1])
    assert "could not be used: there is no Code section\nReply again" in texts(told)[-1]


def test_the_checklist_is_an_option() -> None:
    spoken = protocol("pyautogui-code-v1", {"pre_done_checklist": True})
    messages = spoken.render(inputs(FIXED_2, [code_turn(1)]))
    assert ["Before you declare" in text for text in texts(messages)] == [False, False, False, True]


@pytest.mark.parametrize(("protocol_id", "turn"), [("pyautogui-code-v1", code_turn), ("computer-tool-v1", tool_turn)])
def test_repetition_is_pointed_out(protocol_id: str, turn: Any) -> None:
    spoken = protocol(protocol_id, {"repeated_action_warning_threshold": 3, "repeated_action_window": 3})
    once = turn(1)
    same = [PastTurn(step, image(step), once.text, once.response, once.tool_calls) for step in range(1, 5)]
    assert "was taken 3 times" in texts(spoken.render(inputs(FIXED_2, same)))[-1]
    other = PastTurn(5, image(5), once.text, once.response.replace("0.5", "0.4"), turn(5).tool_calls)
    assert "times lately" not in texts(spoken.render(inputs(FIXED_2, [*same, other])))[-1]
    assert "times lately" not in texts(spoken.render(inputs(FIXED_2, same[:2])))[-1]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("relative", "from 0.0 (left, top) to 1.0"),
        ("relative_1000", "from 0 (left, top) to 1000"),
        ("absolute", "1280 wide and 720 high"),
        ("qwen25", "1288 wide and 728 high"),
    ],
)
@pytest.mark.parametrize("protocol_id", PARSERS)
def test_the_prompt_names_the_space_of_coordinates(protocol_id: str, kind: str, words: str) -> None:
    assert words in texts(protocol(protocol_id, {"coordinate_type": kind}).render(inputs(FIXED_2, [])))[0]


def test_what_a_model_said_cannot_break_a_request() -> None:
    turns = [PastTurn(1, image(1), "a\x00\ud800", "b"), PastTurn(2, image(2), None, "c\x00\ud800")]
    for protocol_id in PARSERS:
        sent = json.dumps(protocol(protocol_id).render(inputs(FIXED_2, turns, "\ud800")), ensure_ascii=False)
        assert b"\\u0000" not in sent.encode()


def test_contradicting_inputs_are_refused() -> None:
    one = inputs(FIXED_2, [code_turn(1)])
    spoken = protocol("pyautogui-code-v1")
    with pytest.raises(ValueError, match="there are 0"):
        spoken.render(PromptInputs("x", [], one.current, one.plan, 2, 15, None, SCREEN, SENT))
    with pytest.raises(ValueError, match="ascend"):
        spoken.render(PromptInputs("x", one.turns, one.current, one.plan, 1, 15, None, SCREEN, SENT))


def test_unknown_ids_and_options_are_refused() -> None:
    with pytest.raises(InvalidInput, match="model_protocol: 'x' is unknown; use one of pyautogui-code-v1"):
        protocol("x")
    with pytest.raises(InvalidInput, match="agent_options: coordinate_type: "):
        protocol("pyautogui-code-v1", {"coordinate_type": "polar"})
    with pytest.raises(InvalidInput, match="agent_options: colour: unknown key"):
        protocol("pyautogui-code-v1", {"colour": 1})


def test_an_id_that_stands_for_other_peoples_bytes_is_refused() -> None:
    """Our prompt under NeMo Gym's id would make two agents look like one."""
    with pytest.raises(InvalidInput, match="its prompt are not available here; use nano-omni-style-v1"):
        protocol("nano-omni-v3-osworld-v1")
    policy = {"kind": "openai", "endpoint": "e", "model": "m", "protocol": "nano-omni-v3-osworld-v1"}
    with pytest.raises(InvalidInput, match=r"policy\.protocol: 'nano-omni-v3-osworld-v1' is NeMo Gym's"):
        parser_of(OpenAIPolicy.model_validate(policy), "eval")
    assert not any("nano-omni-v3" in text for ids in PARSERS.items() for text in ids)


def test_parser_ids_belong_to_protocol_ids() -> None:
    assert {name: protocol(name).parser_id for name in PARSERS} == {
        "pyautogui-code-v1": "pyautogui-code-parser-v1",
        "computer-tool-v1": "computer-tool-parser-v1",
        "nano-omni-style-v1": "nano-omni-style-parser-v1",
        "pyautogui-plain-v1": "pyautogui-plain-parser-v1",
    }


def test_thinking_is_asked_for_only_where_the_contract_sets_it() -> None:
    assert protocol("computer-tool-v1").extra_body() == {}
    for wanted in (True, False):
        asked = protocol("nano-omni-style-v1", {"thinking": wanted}).extra_body()
        assert asked == {"chat_template_kwargs": {"enable_thinking": wanted}}


def request_of(spoken: ModelProtocol, policy: HistoryPolicy, turns: list[PastTurn], feedback: str | None) -> str:
    return digest([spoken.tools(), spoken.extra_body(), spoken.render(inputs(policy, turns, feedback))])


GOLDEN = {
    ("pyautogui-code-v1", "first"): "e70eaf6f84747361a9c90c219cb6abad6778f4f7647f8877f0f3aafbd75fa47d",
    ("pyautogui-code-v1", "fixed"): "a39221a631f638d20878df3292b63d349f0b19a653092fa64e13d1c5d2b16187",
    ("pyautogui-code-v1", "sink"): "79e5c6d1a33fad567c7086a4d373f5c39a1ff81d791eecd2e1ed1a2e94f47bd4",
    ("pyautogui-code-v1", "guided"): "8a55a94acb590814750344f15d3ed45dad7dd54fec2459c6ba8a2bfadd5669b0",
    ("computer-tool-v1", "first"): "70ece9be18a6ca5edb6550f2baf34a3963a88887ff6e5f7574c2a1b16c820332",
    ("computer-tool-v1", "fixed"): "bd5f626636061116d8d233b286bee630dfd4cef32a00a3ee4dd747d0a04cdbf7",
    ("computer-tool-v1", "sink"): "b4fe3e5a17a604803a21d2f4dcb2a68ddc6cf5159edf384e498072e2d7f59459",
    ("computer-tool-v1", "guided"): "3e0723dc66c63f6e5b98d6b49167030fd4a9c51cdbb7d01c6aa49a7459004f86",
    ("nano-omni-style-v1", "first"): "6efd10dfc9e3a38d6210ac11b07e0cbda1565537bff9083207c2d57310ce9b72",
    ("nano-omni-style-v1", "fixed"): "8b0749af3fb9c1216172ce031f442cd4d2e38bca4daa413b20655b49293eec90",
    ("nano-omni-style-v1", "sink"): "e3d2b829a30e56cfa0d8b9a73d2f3b108d7ed5cc87b09c13065449d6dd341f03",
    ("nano-omni-style-v1", "guided"): "47425f8d96ae41cbe36c6d0e4e2fd87b1e0d0f9837a2e66ed22ba37e0cd55278",
    ("pyautogui-plain-v1", "first"): "febf0ef67fa755acc6a2a940a3ef7c4830315e285e4960efd5cfeec97c97fcc4",
    ("pyautogui-plain-v1", "fixed"): "7200a34dbb3f6643117606ee1a439d22167de04150073037d42ef90ab5023ee5",
    ("pyautogui-plain-v1", "sink"): "bce33a17ca20dcd7c5ac66de99af3caadb35e3d4acfdfbcc7c02fcda1403a205",
    ("pyautogui-plain-v1", "guided"): "1ff9a4321eb5de9c48ae277a7bde59dfcc527bf5babc5ee8e69f50ba94cfe335",
}
"""Digests of whole requests. A changed prompt is a new protocol id: never correct one of these."""


@pytest.mark.parametrize(("protocol_id", "case"), GOLDEN)
def test_golden_prompts(protocol_id: str, case: str) -> None:
    turn = tool_turn if protocol_id == "computer-tool-v1" else code_turn
    turns = [turn(step) for step in range(1, 1 if case == "first" else 6)]
    options: dict[str, Any] = {}
    if case == "guided":
        options = {"pre_done_checklist": True, "thinking": True, "coordinate_type": "absolute"}
    feedback = "there was nothing to do" if case == "guided" else None
    policy = SINK if case == "sink" else FIXED_2
    assert request_of(protocol(protocol_id, options), policy, turns, feedback) == GOLDEN[protocol_id, case]


@given(st.integers(0, 30), st.sampled_from(list(PARSERS)), st.integers(1, 4), st.text(max_size=30))
def test_every_prompt_holds_the_planned_images_and_every_turn_once(
    completed: int, protocol_id: str, keep: int, instruction: str
) -> None:
    turn = tool_turn if protocol_id == "computer-tool-v1" else code_turn
    turns = [turn(step) for step in range(1, completed + 1)]
    plan = replay_plan(HistoryPolicy(name="hysteresis", params={"low_water": keep, "high_water": keep + 3}), completed)
    asked = PromptInputs(instruction, turns, image(completed + 1), plan, completed + 1, 99, None, SCREEN, SENT)
    messages = protocol(protocol_id).render(asked)
    marks = [mark for one in messages for mark in _marks(one)]
    images = [int(mark.split()[1]) - 1 for mark in marks if mark.startswith("image")]
    assert images == [at for at, kind in enumerate(plan.dispositions) if kind == "live_image"]
    said = "\n".join(texts(messages))
    for step in range(1, completed + 1):
        assert said.count(f"Thought {step}\n") + said.count(f"Thought {step}\\") <= 1
        assert f"Thought {step}" in said
    assert marks.count("history") - instruction.count("# Previous History Actions:") * len(images) <= 1
    assert messages == protocol(protocol_id).render(asked)


@pytest.mark.parametrize("protocol_id", PARSERS)
def test_a_reply_that_follows_the_prompt_is_understood(protocol_id: str) -> None:
    """The form that the system message shows is the form that the parser reads."""
    spoken = protocol(protocol_id)
    if tools := spoken.tools():
        names = tools[0]["function"]["parameters"]["properties"]["action"]["enum"]
        at = {"coordinate": [0.1, 0.2]}
        needed: dict[str, dict[str, Any]] = {
            "type": {"text": "a"},
            "keypress": {"keys": ["a"]},
            "terminate": {"status": "success"},
        }
        needed |= {"move": at, "drag": at, "scroll": {"direction": "up"}}
        for name in names:
            call = {"function": {"name": "computer", "arguments": {"action": name, **needed.get(name, {})}}}
            assert spoken.parse(ReplyView("", None, [call]), SCREEN, SENT).error is None
        return
    system = texts(spoken.render(inputs(FIXED_2, [])))[0]
    plain = protocol_id == "pyautogui-plain-v1"
    first, last = ("```python", "\n\n- It is") if plain else ("## Thought:", "\n\nRules")
    form = system[system.index(first) : system.index(last)]
    said = form.replace("the code of this action", "pyautogui.click(0.1, 0.2)")
    assert spoken.parse(ReplyView(said), SCREEN, SENT).actions == ["pyautogui.click(192, 216)"]
