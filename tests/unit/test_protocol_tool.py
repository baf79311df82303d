"""Reading calls of the `computer` tool as pyautogui code."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.desktop.runtimes import runtime
from rollbook.policies.protocols.base import CoordinateType, Parsed, ReplyView, Size
from rollbook.policies.protocols.registry import protocol
from rollbook.policies.protocols.toolcalls import ACTIONS

SCREEN = (1920, 1080)


def call(arguments: Any, name: str = "computer") -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def parse(
    *calls: Any,
    content: str | None = "I see a window.",
    kind: CoordinateType = "absolute",
    sent: Size = SCREEN,
    finish: str | None = "tool_calls",
) -> Parsed:
    spoken = protocol("computer-tool-v1", {"coordinate_type": kind})
    return spoken.parse(ReplyView(content, None, calls, finish), SCREEN, sent)


def does(action: str, **arguments: Any) -> Parsed:
    return parse(call(json.dumps({"action": action, **arguments})))


DRAG = """pyautogui.moveTo(1, 2)
pyautogui.mouseDown()
pyautogui.moveTo(3, 4, duration=0.5)
pyautogui.mouseUp()"""

LONG_DRAG = """pyautogui.moveTo(1, 2)
pyautogui.mouseDown()
pyautogui.moveTo(3, 4, duration=0.5)
pyautogui.moveTo(5, 6, duration=0.5)
pyautogui.mouseUp()"""


@pytest.mark.parametrize(
    ("action", "arguments", "code"),
    [
        ("click", {"coordinate": [1, 2]}, "pyautogui.click(1, 2)"),
        ("click", {"x": 1, "y": 2}, "pyautogui.click(1, 2)"),
        ("click", {}, "pyautogui.click()"),
        ("click", {"coordinate": [1, 2], "button": "middle"}, "pyautogui.click(1, 2, button='middle')"),
        ("left_click", {"coordinate": [1.4, 2.6]}, "pyautogui.click(1, 3)"),
        ("double_click", {"coordinate": [1, 2]}, "pyautogui.doubleClick(1, 2)"),
        ("triple_click", {"coordinate": [1, 2]}, "pyautogui.tripleClick(1, 2)"),
        ("right_click", {"coordinate": [1, 2]}, "pyautogui.rightClick(1, 2)"),
        ("middle_click", {"coordinate": {"x": 1, "y": 2}}, "pyautogui.middleClick(1, 2)"),
        ("move", {"coordinate": [1, 2]}, "pyautogui.moveTo(1, 2)"),
        ("drag", {"start_coordinate": [1, 2], "coordinate": [3, 4]}, DRAG),
        ("drag", {"path": [[1, 2], {"x": 3, "y": 4}]}, DRAG),
        ("drag", {"path": [[1, 2], [3, 4], [5, 6]]}, LONG_DRAG),
        ("drag", {"coordinate": [3, 4]}, DRAG.partition("\n")[2]),
        ("scroll", {"direction": "down", "amount": 3}, "pyautogui.scroll(-3)"),
        ("scroll", {"direction": "up", "coordinate": [1, 2]}, "pyautogui.scroll(5, 1, 2)"),
        ("scroll", {"direction": "right", "amount": 2.0}, "pyautogui.hscroll(2)"),
        ("scroll", {"direction": "left"}, "pyautogui.hscroll(-5)"),
        ("type", {"text": "a'b\"c\\\n\r\né中🙂"}, "pyautogui.typewrite('a\\'b\"c\\\\\\n\\né中🙂')"),
        ("type", {"text": "\x00\ud800"}, "pyautogui.typewrite('\\x00\\ud800')"),
        ("keypress", {"keys": ["Return"]}, "pyautogui.press('enter')"),
        ("keypress", {"keys": ["CTRL", "C"]}, "pyautogui.hotkey('ctrl', 'c')"),
        ("keypress", {"keys": "ctrl+shift+t"}, "pyautogui.hotkey('ctrl', 'shift', 't')"),
        ("key", {"text": "Page_Down"}, "pyautogui.press('pagedown')"),
        ("keypress", {"keys": ["A"]}, "pyautogui.press('A')"),
        ("wait", {"time": 2}, "WAIT"),
    ],
)
def test_actions_as_code(action: str, arguments: dict[str, Any], code: str) -> None:
    assert does(action, **arguments).actions == [code]


def test_terminate_and_what_follows_it() -> None:
    click, end = call({"action": "click", "coordinate": [1, 2]}), call({"action": "terminate", "status": "failure"})
    assert does("terminate", status="success") == Parsed(
        [], "DONE", thought="I see a window.", action_text='terminate {"status":"success"}'
    )
    parsed = parse(click, end, click)
    assert (parsed.actions, parsed.terminal_action) == (["pyautogui.click(1, 2)"], "FAIL")


def test_a_screenshot_is_a_step_without_an_action() -> None:
    parsed = does("screenshot")
    assert (parsed.actions, parsed.terminal_action, parsed.failure_kind) == ([], None, None)


def test_a_call_in_the_text_counts_where_the_server_did_not_read_it() -> None:
    made = json.dumps({"name": "computer", "arguments": {"action": "click", "coordinate": [1, 2]}})
    said = f"Click.\n<tool_call>\n{made}\n</tool_call>"
    parsed = parse(content=said, finish="stop")
    assert (parsed.actions, parsed.thought) == (["pyautogui.click(1, 2)"], "Click.")
    assert parse(content=f"<think>{said}</think>Done?").failure_kind == "unparseable"
    assert parse(content=said, finish="length").failure_kind == "output_truncated"


def test_coordinates_are_projected() -> None:
    half = call({"action": "click", "coordinate": [0.5, 0.5]})
    assert parse(half, kind="relative").actions == ["pyautogui.click(960, 540)"]
    assert parse(call({"action": "click", "coordinate": [500, 1000]}), kind="relative_1000").actions == [
        "pyautogui.click(960, 1079)"
    ]
    assert parse(call({"action": "click", "coordinate": [10, 20]}), sent=(960, 540)).actions == [
        "pyautogui.click(20, 40)"
    ]
    assert "outside 0..1" in (parse(call({"action": "click", "coordinate": [960, 2]}), kind="relative").error or "")


def test_the_action_may_be_the_function_name() -> None:
    assert parse(call({"coordinate": [1, 2]}, "click")).actions == ["pyautogui.click(1, 2)"]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call({"action": "fly"}), "no such tool call"),
        (call({}), "no such tool call"),
        (call({"action": ["click"]}), "no such tool call"),
        (call({"action": "click"}, "bash"), "no such tool call"),
        (call({"command": "rm"}, "bash"), "no such tool call"),
        (call('{"action": "click"'), "not JSON"),
        (call('{"action": "click", "coordinate": [NaN, 1]}'), "not JSON"),
        (call("[1]"), "JSON object"),
        ("click", "name and arguments"),
        ({"function": None}, "name and arguments"),
        (call({"action": "click", "coordinate": [1]}), "two numbers"),
        (call({"action": "click", "coordinate": [True, 1]}), "two numbers"),
        (call({"action": "click", "coordinate": "1, 2"}), "two numbers"),
        (call({"action": "click", "x": 1}), "two numbers"),
        (call({"action": "click", "coordinate": [10**400, 1]}), "too large"),
        (call('{"action": "click", "coordinate": [1e999, 1]}'), "not JSON"),
        (call({"action": "click", "coordinate": [float("inf"), 1]}), "not JSON"),
        (call({"action": "click", "coordinate": [1e7, 1]}), "not a place"),
        (call({"action": "click", "button": "fourth"}), "button"),
        (call({"action": "move"}), "coordinate is required"),
        (call({"action": "drag"}), "coordinate is required"),
        (call({"action": "drag", "path": [[1, 2]]}), "at least two"),
        (call({"action": "scroll"}), "direction"),
        (call({"action": "scroll", "direction": "up", "amount": 0}), "amount"),
        (call({"action": "scroll", "direction": "up", "amount": "3"}), "amount"),
        (call({"action": "type"}), "text"),
        (call({"action": "type", "text": ""}), "text"),
        (call({"action": "type", "text": "a" * 20_001}), "at most"),
        (call({"action": "keypress"}), "keys"),
        (call({"action": "keypress", "keys": []}), "keys"),
        (call({"action": "keypress", "keys": ["anykey"]}), "no key named 'anykey'"),
        (call({"action": "keypress", "keys": [1]}), "keys"),
        (call({"action": "terminate"}), "success or failure"),
        (call({"action": "terminate", "status": True}), "success or failure"),
    ],
)
def test_calls_that_cannot_be_meant(made: Any, error: str) -> None:
    """One wrong call, and none of the reply's calls is carried out."""
    parsed = parse(call({"action": "click", "coordinate": [1, 2]}), made)
    assert (parsed.actions, parsed.terminal_action, parsed.failure_kind) == ([], None, "unparseable")
    assert error in (parsed.error or "")


@pytest.mark.parametrize(
    ("content", "calls", "finish", "kind"),
    [
        (None, (), "stop", "empty_response"),
        (" ", (), "stop", "empty_response"),
        ("Hello", (), "stop", "unparseable"),
        ("Hello", (), "length", "output_truncated"),
        (None, (call({"action": "click"}),), "length", "output_truncated"),
    ],
)
def test_failure_kinds(content: str | None, calls: tuple[Any, ...], finish: str, kind: str) -> None:
    assert parse(*calls, content=content, finish=finish).failure_kind == kind


@given(st.text(st.characters(exclude_categories=[]), min_size=1, max_size=60))
def test_any_text_is_typed_as_it_is(text: str) -> None:
    """Quotes, line ends, NUL and lone surrogates included; nothing of it becomes code."""
    (action,) = does("type", text=text).actions
    (statement,) = ast.parse(action).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert ast.unparse(statement.value.func) == "pyautogui.typewrite"
    assert ast.literal_eval(statement.value.args[0]) == text.replace("\r\n", "\n")
    action.encode()
    compile(runtime("canonical").code(action), "action", "exec")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {"action": st.sampled_from(list(ACTIONS)) | JSON},
    optional={name: JSON for name in ("start_coordinate", "path", "direction", "amount", "keys", "status", "button")}
    | {"coordinate": JSON | st.lists(st.floats(0, 1), min_size=2, max_size=2), "text": JSON | st.text()},
)
CALLS = st.lists(
    st.builds(call, ARGUMENTS | ARGUMENTS.map(json.dumps) | JSON, st.sampled_from(["computer", "click", "x"])) | JSON,
    max_size=3,
)


@given(CALLS, st.text(max_size=20) | st.none(), st.sampled_from(["stop", "length", "tool_calls", None]))
def test_any_calls_are_read_without_raising(calls: list[Any], content: str | None, finish: str | None) -> None:
    parsed = parse(*calls, content=content, finish=finish, kind="relative")
    assert bool(parsed.error) == bool(parsed.failure_kind)
    for text in (parsed.error or "", parsed.kept_text, *parsed.actions):
        text.encode()
    for action in parsed.actions:
        compile(runtime("canonical").code(action), "action", "exec")


@given(st.text(max_size=30))
def test_any_tagged_text_is_read_without_raising(body: str) -> None:
    parsed = parse(content=f"a<tool_call>{body}</tool_call>b<tool_call>{body}", finish="stop")
    assert parsed.failure_kind == "unparseable"
