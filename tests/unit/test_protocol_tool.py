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
from rollbook.policies.protocols.tools.actions import ACTIONS
from rollbook.policies.protocols.tools.calls import ALIASES, OFFERED, UNDERSTOOD

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
        ("wait", {}, "WAIT"),
    ],
)
def test_actions_as_code(action: str, arguments: dict[str, Any], code: str) -> None:
    assert does(action, **arguments).actions == [code]


SHIFT_CLICK = "pyautogui.keyDown('shift')\npyautogui.click(1, 2)\npyautogui.keyUp('shift')"
CTRL_SHIFT_SCROLL = """pyautogui.keyDown('ctrl')
pyautogui.keyDown('shift')
pyautogui.scroll(-3, 1, 2)
pyautogui.keyUp('shift')
pyautogui.keyUp('ctrl')"""
HELD = """pyautogui.keyDown('shift')
pyautogui.keyDown('a')
time.sleep(1.5)
pyautogui.keyUp('a')
pyautogui.keyUp('shift')"""

ANTHROPIC = [
    ({"action": "left_click", "coordinate": [1, 2], "text": "shift"}, SHIFT_CLICK),
    (
        {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "down", "scroll_amount": 3},
        "pyautogui.scroll(-3, 1, 2)",
    ),
    (
        {
            "action": "scroll",
            "coordinate": [1, 2],
            "scroll_direction": "down",
            "scroll_amount": 3,
            "text": "ctrl+shift",
        },
        CTRL_SHIFT_SCROLL,
    ),
    ({"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]}, DRAG),
    ({"action": "left_mouse_down"}, "pyautogui.mouseDown()"),
    ({"action": "left_mouse_up"}, "pyautogui.mouseUp()"),
    ({"action": "key", "text": "Down", "repeat": 2}, "pyautogui.press('down')\npyautogui.press('down')"),
    ({"action": "hold_key", "text": "shift+A", "duration": 1.5}, HELD),
    ({"action": "wait", "duration": 2}, "time.sleep(2)"),
]
OPENAI = [
    ({"type": "click", "button": "left", "x": 1, "y": 2}, "pyautogui.click(1, 2)"),
    ({"type": "click", "button": "wheel", "x": 1, "y": 2}, "pyautogui.click(1, 2, button='middle')"),
    ({"type": "click", "button": "left", "x": 1, "y": 2, "keys": ["SHIFT"]}, SHIFT_CLICK),
    ({"type": "click", "button": "left", "x": 1, "y": 2, "keys": None}, "pyautogui.click(1, 2)"),
    ({"type": "click", "button": "left", "x": 1, "y": 2, "keys": []}, "pyautogui.click(1, 2)"),
    ({"type": "double_click", "x": 1, "y": 2}, "pyautogui.doubleClick(1, 2)"),
    ({"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}, DRAG),
    ({"type": "keypress", "keys": ["CTRL", "A"]}, "pyautogui.hotkey('ctrl', 'a')"),
    ({"type": "move", "x": 1, "y": 2}, "pyautogui.moveTo(1, 2)"),
    ({"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 300}, "pyautogui.scroll(-3, 1, 2)"),
    (
        {"type": "scroll", "x": 1, "y": 2, "scroll_x": -40, "scroll_y": -250},
        "pyautogui.scroll(2, 1, 2)\npyautogui.hscroll(-1, 1, 2)",
    ),
    ({"type": "type", "text": "a"}, "pyautogui.typewrite('a')"),
    ({"action": {"type": "click", "button": "left", "x": 1, "y": 2}}, "pyautogui.click(1, 2)"),
]
QWEN = [
    ({"action": "left_click", "coordinate": "[1, 2]"}, "pyautogui.click(1, 2)"),
    ({"action": "left_click", "coordinate": "(1.0, 2)"}, "pyautogui.click(1, 2)"),
    ({"action": "left_click", "coordinate": ["1", " 2 "]}, "pyautogui.click(1, 2)"),
    ({"action": "left_click", "x": "1", "y": "2"}, "pyautogui.click(1, 2)"),
    ({"action": "mouse_move", "coordinate": [1, 2]}, "pyautogui.moveTo(1, 2)"),
    ({"action": "hover", "coordinate": [1, 2]}, "pyautogui.moveTo(1, 2)"),
    ({"action": "key", "keys": ["ctrl", "c"]}, "pyautogui.hotkey('ctrl', 'c')"),
    ({"action": "key", "keys": '["ctrl", "c"]'}, "pyautogui.hotkey('ctrl', 'c')"),
    ({"action": "key", "keys": ["["]}, "pyautogui.press('[')"),
    ({"action": "key", "text": "["}, "pyautogui.press('[')"),
    ({"action": "scroll", "coordinate": [1, 2], "pixels": -500}, "pyautogui.scroll(-5, 1, 2)"),
    ({"action": "scroll", "pixels": 5}, "pyautogui.scroll(1)"),
    ({"action": "scroll", "direction": "up", "amount": "3"}, "pyautogui.scroll(3)"),
    ({"action": "wait", "time": "2.5"}, "time.sleep(2.5)"),
]


@pytest.mark.parametrize(("arguments", "code"), [*ANTHROPIC, *OPENAI, *QWEN])
def test_what_models_know_from_other_computer_tools(arguments: dict[str, Any], code: str) -> None:
    parsed = parse(call(json.dumps(arguments), "computer_use"))
    assert (parsed.actions, parsed.error) == ([code], None)
    compile(runtime("canonical").code(code), "action", "exec")


def test_a_long_wait_is_several_actions() -> None:
    """Of at most ten seconds, so that none outlasts the contract's action timeout."""
    assert does("wait", time=25).actions == ["time.sleep(10)", "time.sleep(10)", "time.sleep(5)"]
    assert does("wait", seconds=10).actions == ["time.sleep(10)"]
    assert sum(float(action[11:-1]) for action in does("wait", duration=300).actions) == 300


@pytest.mark.parametrize(("status", "ending"), [("SUCCESS", "DONE"), (" Failure", "FAIL"), ("success", "DONE")])
def test_status_in_any_case(status: str, ending: str) -> None:
    assert does("terminate", status=status).terminal_action == ending


CLICK = {"coordinate": [1, 2], "button": "left", "keys": ["ctrl"]}
USED: dict[str, dict[str, Any]] = {
    **{name: CLICK for name in ("click", "double_click", "triple_click", "mouse_down", "mouse_up")},
    "right_click": CLICK | {"button": "right"},
    "middle_click": CLICK | {"button": "middle"},
    "move": {"coordinate": [1, 2]},
    "drag": {"start_coordinate": [1, 2], "coordinate": [3, 4], "button": "left", "keys": ["ctrl"]},
    "scroll": {"coordinate": [1, 2], "direction": "up", "amount": 2, "keys": ["ctrl"]},
    "type": {"text": "a"},
    "keypress": {"keys": ["a"], "repeat": 2},
    "hold_key": {"keys": ["a"], "duration": 1},
    "wait": {"duration": 1},
    "screenshot": {},
    "terminate": {"status": "success"},
}
"""All that each action knows, in one name each."""

STRAY: dict[str, Any] = (
    {"coordinate": [1, 2], "start_coordinate": [1, 2], "button": "left", "direction": "up", "amount": 2, "text": "b"}
    | {"keys": ["ctrl"], "status": "success", "duration": 1, "repeat": 2, "x": 1, "path": [[1, 2], [3, 4]]}
    | {"clicks": 2, "num_clicks": 2, "enter": True, "Coordinate": [1, 2], "scroll_x": 1, "pixels": 9, "": 0}
)


@pytest.mark.parametrize("action", UNDERSTOOD)
def test_every_argument_is_used_or_refused(action: str) -> None:
    """Nothing is left out without a word: neither what the tool does not know nor what the action does not."""
    used = USED[action]
    assert does(action, **used).error is None
    for name, value in STRAY.items():
        if name not in used:
            parsed = does(action, **used, **{name: value})
            assert (parsed.actions, parsed.terminal_action, parsed.failure_kind) == ([], None, "unparseable"), name
            assert (parsed.error or "").startswith(f"{action}: ")
        assert does(action, **({name: None} | used)).error is None, "null is not given"


def test_each_known_action_has_a_meaning() -> None:
    assert set(ACTIONS) == set(UNDERSTOOD) == set(USED)
    assert set(ALIASES.values()) <= set(ACTIONS)
    assert UNDERSTOOD[: len(OFFERED)] == OFFERED


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
        (call({"action": "click", "coordinate": "1 2"}), "two numbers"),
        (call({"action": "click", "coordinate": "[1, 2, 3]"}), "two numbers"),
        (call({"action": "click", "coordinate": [1, 2, 3, 4]}), "two numbers"),
        (call({"action": "click", "coordinate": {"x": 1, "y": 2, "z": 3}}), "two numbers"),
        (call({"action": "click", "coordinate": ["nan", "1"]}), "two numbers"),
        (call({"action": "click", "coordinate": ["1e999", "1"]}), "not a place"),
        (call({"action": "click", "coordinate": [1, 2], "x": 1, "y": 2}), "not both"),
        (call({"action": "click", "keys": ["a"]}), "only ctrl, shift, alt and win"),
        (call({"action": "click", "keys": ["shift"], "text": "ctrl"}), "not both"),
        (call({"action": "click", "button": "back"}), "button"),
        (call({"action": "right_click", "button": "left"}), "button"),
        (call({"action": "drag", "coordinate": [1, 2], "button": "right"}), "button"),
        (call({"action": "zoom", "region": [1, 2, 3, 4]}), "no such tool call"),
        (call({"action": "cursor_position"}), "no such tool call"),
        (call({"action": "answer", "text": "42"}), "no such tool call"),
        (call({"type": "fly"}), "type 'fly'"),
        (call({"action": "scroll", "pixels": 0}), "must not be 0"),
        (call({"action": "scroll", "scroll_x": 0, "scroll_y": 0}), "must not be 0"),
        (call({"action": "scroll", "pixels": 1e9}), "pixels"),
        (call({"action": "scroll", "pixels": 5, "direction": "up"}), "in one way"),
        (call({"action": "scroll", "scroll_direction": "up", "direction": "up"}), "not both"),
        (call({"action": "wait", "time": 0}), "duration"),
        (call({"action": "wait", "time": 301}), "duration"),
        (call({"action": "wait", "time": "soon"}), "duration"),
        (call({"action": "wait", "time": True}), "duration"),
        (call({"action": "wait", "time": 1, "duration": 1}), "not both"),
        (call({"action": "hold_key", "text": "a"}), "duration is required"),
        (call({"action": "hold_key", "text": "a", "duration": 60}), "duration"),
        (call({"action": "key", "text": "a", "repeat": 1000}), "repeat"),
        (call({"action": "keypress", "keys": '["ctrl", '}), "list of key names"),
        (call({"action": "terminate", "status": "done"}), "success or failure"),
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
        (call({"action": "scroll", "direction": "up", "amount": "three"}), "amount"),
        (call({"action": "scroll", "direction": "up", "amount": 1.5}), "amount"),
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
    {"action": st.sampled_from([*ACTIONS, *ALIASES]) | JSON},
    optional={name: JSON for name in ("start_coordinate", "path", "direction", "amount", "keys", "status", "button")}
    | {name: JSON for name in ("type", "x", "y", "pixels", "scroll_x", "scroll_y", "duration", "repeat")}
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
