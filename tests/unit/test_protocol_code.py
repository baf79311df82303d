"""Reading pyautogui code out of replies: upstream's parser rules, and that nothing else ever runs."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.desktop.runtimes import runtime
from rollbook.policies.protocols.base import CoordinateType, Parsed, ReplyView, Size
from rollbook.policies.protocols.registry import protocol

SCREEN = (1920, 1080)


def parse(
    content: str,
    *,
    kind: CoordinateType = "absolute",
    sent: Size = SCREEN,
    finish: str | None = "stop",
    reasoning: str | None = None,
    protocol_id: str = "pyautogui-code-v1",
) -> Parsed:
    spoken = protocol(protocol_id, {"coordinate_type": kind})
    return spoken.parse(ReplyView(content, reasoning, (), finish), SCREEN, sent)


def reply(code: str, fence: str = "```") -> str:
    return f"## Thought:\nA window is open.\n\n## Action:\nClick it.\n\n## Code:\n{fence}python\n{code}\n{fence}\n"


def test_a_whole_reply() -> None:
    assert parse(reply("pyautogui.click(412, 88)")) == Parsed(
        ["pyautogui.click(412, 88)"], thought="A window is open.", action_text="Click it."
    )


@pytest.mark.parametrize(
    "section",
    [
        "## Code:\n```python\npyautogui.click(1, 2)\n```",
        "## Code\n```\npyautogui.click(1, 2)\n```",
        "## Code: ```python\npyautogui.click(1, 2)\n```",
        "## Code:\n```pyautogui.click(1, 2)```",
        "## Code:\n```python pyautogui.click(1, 2)```",
        "## Code:\n```python\npyautogui.click(1, 2)```",
        "## Code:\n~~~~py\npyautogui.click(1, 2)\n~~~~",
        "## Code:\n```python\n    pyautogui.click(1, 2)\n```",
        "## Code:\n```python\npyautogui.click(1, 2)",
        "## Code:\npyautogui.click(1, 2)",
        "## Code: pyautogui.click(1, 2)",
        "## Code: `pyautogui.click(1, 2)`",
        "### **Code:**\npyautogui.click(1, 2)\n\n",
        "## code\r\n```python\r\npyautogui.click(1, 2)\r\n```\r\n",
        "## Code:\n```python\npyautogui.moveTo(9, 9)\n```\nOr:\n```python\npyautogui.click(1, 2)\n```\nThat is all.",
        "## Code:\n```python\npyautogui.click(1, 2)\n```\n## Action:\nClick it.",
    ],
)
def test_code_sections_in_every_accepted_form(section: str) -> None:
    """Fenced or not, inline or on the next line, the last block; a missing Action is tolerated."""
    assert parse(section).actions == ["pyautogui.click(1, 2)"]


@pytest.mark.parametrize(
    "content",
    [
        "I will click: pyautogui.click(1, 2)",
        "```python\npyautogui.click(1, 2)\n```",
        "## Thought:\n```python\npyautogui.click(1, 2)\n```\n## Action:\nClick.",
        "## Thought:\nThe form is\n```\n## Code:\npyautogui.click(1, 2)\n```",
        "## Action: pyautogui.click(1, 2)",
        "# Code\npyautogui.click(1, 2)",
        "## Codec\npyautogui.click(1, 2)",
        "The ## Code: pyautogui.click(1, 2)",
        "<think>## Code:\npyautogui.click(1, 2)</think>\nI am not sure.",
        "<think>## Code:\npyautogui.click(1, 2)",
        "draft ## Code\n## Code:\npyautogui.click(1, 2)\n</think>",
        "Let me see. <think>## Code:\npyautogui.click(1, 2)",
        "<think>a</think>\nWait.\n<think>\n## Code:\npyautogui.click(1, 2)",
        "## Thought:\nx\n<think>\n## Code:\npyautogui.click(1, 2)",
        "## Code:\nI would click at (1, 2).",
        "## Code:\npyautogui.click(1, 2)\nThis clicks the button.",
        "## Code:\n```python\npyautogui.click(1, 2\n```",
        "## Code:\n```python\n```",
        "## Code:\n",
        "## Code:\n# nothing to do",
        "## Code:\nNone",
        "## Code:\nreturn pyautogui.click(1, 2)",
        "## Code:\npyautogui.click(1, 2)\n## Code:\npyautogui.click(3, 4)",
        "## Code:\npyautogui.press('\x00')",
        "## Code:\npyautogui.write('\ud800')",
    ],
)
def test_nothing_else_runs(content: str) -> None:
    parsed = parse(content)
    assert (parsed.actions, parsed.terminal_action) == ([], None)
    assert parsed.failure_kind in ("unparseable", "empty_response")
    assert parsed.error
    assert parsed.stop_reason in ("model_response_unparseable", "model_response_empty")


def test_thinking_is_kept_and_skipped() -> None:
    parsed = parse("Let me see. ## Code: x()\n</think>\n## Code:\npyautogui.click(1, 2)")
    assert parsed.actions == ["pyautogui.click(1, 2)"]
    assert parsed.thought == "Let me see. ## Code: x()"
    assert parse("## Code:\npyautogui.click(1, 2)", reasoning="Hm.").thought == "Hm."
    assert parse("<think>Hm.</think>" + reply("x()")).thought == "A window is open."
    assert parse("<think>a</think>" + reply("x()") + "\n<think>## Code:\ny()").actions == ["x()"]


@pytest.mark.parametrize(
    ("code", "actions", "terminal"),
    [
        ("WAIT", ["WAIT"], None),
        ("DONE", [], "DONE"),
        ("FAIL", [], "FAIL"),
        ("computer.wait()", ["WAIT"], None),
        ("computer.wait(seconds=3)", ["WAIT"], None),
        ("computer.terminate(status='success')", [], "DONE"),
        ('computer.terminate("Failure")', [], "FAIL"),
        ("computer.terminate(status='success', note='saved')", [], "DONE"),
        ("x()\nDONE", ["x()"], "DONE"),
        ("x(); DONE", ["x()"], "DONE"),
        ("x()\n\n# all is saved\nDONE  # bye", ["x()\n\n# all is saved"], "DONE"),
        ("x()\nWAIT\ny()\nDONE\nz()", ["x()", "WAIT", "y()"], "DONE"),
        ("WAIT; WAIT", ["WAIT", "WAIT"], None),
        ("DONE\ncomputer.terminate(status='failure')", [], "DONE"),
        ("@x\ndef f(): pass\nf()\nWAIT", ["pass\n@x\ndef f(): pass\nf()", "WAIT"], None),
        ("pyautogui.write('DONE')", ["pyautogui.write('DONE')"], None),
    ],
)
def test_words_split_the_code(code: str, actions: list[str], terminal: str | None) -> None:
    parsed = parse(reply(code))
    assert (parsed.actions, parsed.terminal_action, parsed.error) == (actions, terminal, None)


@pytest.mark.parametrize("word", ["WAIT", "DONE", "FAIL"])
def test_a_word_in_a_fence_of_its_own(word: str) -> None:
    for code in (f"```{word}```", f"```{word}\n```", f"```\n{word}\n```", word):
        parsed = parse(f"## Code:\n{code}")
        assert [*parsed.actions, *([parsed.terminal_action] if parsed.terminal_action else [])] == [word]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("computer.terminate()", "needs status"),
        ("computer.terminate(status='done')", "needs status"),
        ("computer.terminate(status=ok)", "needs status"),
        ("computer.terminate('success', 'failure')", "needs status"),
        ("computer.terminate('success', status='failure')", "needs status"),
        ("computer.click(1, 2)", "does not exist"),
        ("if x():\n    computer.terminate(status='success')", "statement of its own"),
        ("if x():\n    DONE", "statement of its own"),
        ("y = computer.wait()", "statement of its own"),
        ("from __future__ import annotations\nx()", "__future__"),
        ("x(" + "1" * 60_000 + ")", "longer than"),
    ],
)
def test_words_that_cannot_be_meant(code: str, error: str) -> None:
    parsed = parse(reply(code))
    assert error in (parsed.error or "")
    assert (parsed.actions, parsed.terminal_action, parsed.failure_kind) == ([], None, "unparseable")


@pytest.mark.parametrize(
    ("kind", "sent", "code", "projected"),
    [
        ("relative", SCREEN, "pyautogui.click(0.5, 0.25)", "pyautogui.click(960, 270)"),
        ("relative", SCREEN, "pyautogui.click(x=1.0, y=1)", "pyautogui.click(x=1919, y=1079)"),
        ("relative", SCREEN, "pyautogui.click((0.5, .5))", "pyautogui.click((960, 540))"),
        ("relative", SCREEN, "pyautogui.moveTo([0, +0.5], duration=0.3)", "pyautogui.moveTo([0, 540], duration=0.3)"),
        ("relative", SCREEN, "pyautogui.scroll(-3, 0.5, 0.5)", "pyautogui.scroll(-3, 960, 540)"),
        ("relative", SCREEN, "pyautogui.scroll(-3, x=0.5, y=0.5)", "pyautogui.scroll(-3, x=960, y=540)"),
        ("relative", SCREEN, "pyautogui.scroll(-3)", "pyautogui.scroll(-3)"),
        ("relative", SCREEN, "pyautogui.click()", "pyautogui.click()"),
        ("relative", SCREEN, "pyautogui.click(None, None)", "pyautogui.click(None, None)"),
        ("relative", SCREEN, "pyautogui.moveTo(x=0.5)", "pyautogui.moveTo(x=960)"),
        ("relative", SCREEN, "pyautogui.moveRel(0, 100)", "pyautogui.moveRel(0, 100)"),
        ("relative", SCREEN, "pyautogui.click((0.5, 0.5), None)", "pyautogui.click((960, 540), None)"),
        ("relative", SCREEN, "pyautogui.click(y=0.5, x=0.5)", "pyautogui.click(y=540, x=960)"),
        ("relative", SCREEN, "pyautogui.dragTo(0.5, y=0.5)", "pyautogui.dragTo(960, y=540)"),
        ("relative", SCREEN, "pyautogui.scroll(n, (0.5, 0.5))", "pyautogui.scroll(n, (960, 540))"),
        ("relative", SCREEN, "pyautogui.scroll(clicks=-3, x=0.5, y=0.5)", "pyautogui.scroll(clicks=-3, x=960, y=540)"),
        ("relative", SCREEN, "pyautogui.drag(n, -30, button='left')", "pyautogui.drag(n, -30, button='left')"),
        (
            "relative",
            SCREEN,
            "from pyautogui import *\nclick(0.5, 0.5); sleep(0.5)",
            "from pyautogui import *\nclick(960, 540); sleep(0.5)",
        ),
        ("relative", SCREEN, "time.sleep(0.5)", "time.sleep(0.5)"),
        ("relative", SCREEN, "other.click(0.5, 0.5)", "other.click(0.5, 0.5)"),
        ("relative", SCREEN, "'é中'; pyautogui.click(0.5, 0.5)", "'é中'; pyautogui.click(960, 540)"),
        ("relative_1000", SCREEN, "pyautogui.dragTo(500, 1000, 1)", "pyautogui.dragTo(960, 1079, 1)"),
        ("absolute", SCREEN, "pyautogui.click(412.7, 5000)", "pyautogui.click(412.7, 5000)"),
        ("absolute", (960, 540), "pyautogui.click(100, 50)", "pyautogui.click(200, 100)"),
        ("absolute", (960, 540), "pyautogui.click(-3, 5000)", "pyautogui.click(0, 1079)"),
        ("qwen25", SCREEN, "pyautogui.click(1932, 546)", "pyautogui.click(1919, 540)"),
        (
            "relative",
            SCREEN,
            "import pyautogui as p\nfrom pyautogui import click as c\np.moveTo(0.5, 0.5); c(0.1,\n  0.1)",
            "import pyautogui as p\nfrom pyautogui import click as c\np.moveTo(960, 540); c(192,\n  108)",
        ),
    ],
)
def test_literal_coordinates_become_pixels(kind: CoordinateType, sent: Size, code: str, projected: str) -> None:
    assert parse(reply(code), kind=kind, sent=sent).actions == [projected]


CANNOT_BE_PROJECTED = """
pyautogui.click(w * 0.5, 0.5)
pyautogui.click(x, y)
pyautogui.click(0.5, y)
pyautogui.click(x=0.5, y=y)
pyautogui.click(0.25 + 0.25, 0.5)
pyautogui.click(float(0.5), 0.5)
pyautogui.click(p)
pyautogui.click(True, False)
pyautogui.click('0.5', '0.5')
pyautogui.click('button.png')
pyautogui.click((0.1, 0.1, 0.2, 0.2))
pyautogui.click(*p)
pyautogui.click(*[0.5, 0.5])
pyautogui.click(**{'x': 0.5, 'y': 0.5})
pyautogui.scroll(-3, *p)
c = pyautogui.click; c(0.5, 0.5)
(c := pyautogui.click)(0.5, 0.5)
pyautogui.click.__call__(0.5, 0.5)
list(map(pyautogui.click, [0.5], [0.5]))
pg = pyautogui; pg.click(0.5, 0.5)
(pg := pyautogui).click(0.5, 0.5)
[pyautogui][0].click(0.5, 0.5)
getattr(pyautogui, 'click')(0.5, 0.5)
pyautogui.__dict__['click'](0.5, 0.5)
pyautogui.platformModule._click(0.5, 0.5, 'left')
pyautogui.run('g0.5,0.5 c')
import sys; sys.modules['pyautogui'].click(0.5, 0.5)
import importlib; importlib.import_module('pyautogui').click(0.5, 0.5)
import pyautogui._pyautogui_x11 as x11; x11._moveTo(0.5, 0.5)
from pyautogui._pyautogui_x11 import _moveTo; _moveTo(0.5, 0.5)
from pyautogui import *; c = click; c(0.5, 0.5)
from pyautogui import *; click(*[0.5, 0.5])
from pyautogui import click as press_it; press_it(x, y)
from pyautogui import moveTo; [moveTo(x, y) for x, y in [(0.1, 0.2), (0.3, 0.4)]]
for x, y in [(0.1, 0.2), (0.3, 0.4)]: pyautogui.click(x, y)
exec('pyautogui.click(0.5, 0.5)')
eval('pyautogui').click(0.5, 0.5)
__import__('pyautogui').click(0.5, 0.5)
globals()['pyautogui'].click(0.5, 0.5)
pyautogui.click = print; pyautogui.click(0.5, 0.5)
pyautogui = other(); pyautogui.click(0.5, 0.5)
def f(pyautogui): pyautogui.click(0.5, 0.5)
import tkinter as pyautogui; pyautogui.click(0.5, 0.5)
from pyautogui import click; from foo import click; click(0.5, 0.5)
from pyautogui import click; click = print; click(0.5, 0.5)
f"{pyautogui.click(0.5, 0.5)}"
pyautogui.moveRel(0.1, 0)
pyautogui.drag((0.1, 0.2))
pyautogui.move(xOffset=0.1)
pyautogui.moveRel(*p)
m = pyautogui.moveRel; m(0.1, 0)
""".strip().splitlines()


@pytest.mark.parametrize("protocol_id", ["pyautogui-code-v1", "nano-omni-style-v1"])
@pytest.mark.parametrize("code", CANNOT_BE_PROJECTED)
def test_a_place_that_cannot_be_projected_never_runs_as_it_stands(code: str, protocol_id: str) -> None:
    """pyautogui would cut 0.5 to pixel 0 and click there without a word."""
    for kind, sent in (("relative", SCREEN), ("relative_1000", SCREEN), ("qwen25", SCREEN), ("absolute", (960, 540))):
        parsed = parse(reply(code), kind=kind, sent=sent, protocol_id=protocol_id)  # type: ignore[arg-type]
        assert (parsed.actions, parsed.failure_kind) == ([], "unparseable")
        assert parsed.error


@pytest.mark.parametrize("code", CANNOT_BE_PROJECTED)
def test_pixels_of_the_screen_are_left_alone(code: str) -> None:
    (action,) = parse(reply(code), kind="absolute", protocol_id="nano-omni-style-v1").actions
    assert action.removeprefix("pass\n") == code


@pytest.mark.parametrize(
    "code",
    [
        "w, h = pyautogui.size(); print(pyautogui.position())",
        "import subprocess; subprocess.run(['true'])",
        "pyautogui.PAUSE = 0.5; pyautogui.press('a')",
        "def click(x, y): print(x, y)\nclick(0.5, 0.5)",
        "for n in [1, 2]: pyautogui.scroll(n)",
        "pyautogui.write('import pyautogui; exec(x)')",
        "getattr(time, 'sleep')(0.5)",
    ],
)
def test_code_that_points_nowhere_is_left_alone(code: str) -> None:
    (action,) = parse(reply(code), kind="relative").actions
    assert action.removeprefix("pass\n") == code


@pytest.mark.parametrize(
    ("kind", "x"), [("relative", "960"), ("relative", "-0.1"), ("relative_1000", "1001"), ("relative", "1e999")]
)
def test_a_coordinate_of_another_unit_is_refused(kind: CoordinateType, x: str) -> None:
    parsed = parse(reply(f"pyautogui.click({x}, 0.5)"), kind=kind)
    assert parsed.failure_kind == "unparseable"
    assert "coordinate" in (parsed.error or "")


@given(
    st.sampled_from(["relative", "relative_1000", "absolute", "qwen25"]),
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_every_place_lands_on_the_screen(kind: CoordinateType, sent: Size, at: tuple[float, float]) -> None:
    """The place that a fraction names is within a pixel of where the projection puts it."""
    far = {"relative": (1, 1), "relative_1000": (1000, 1000)}.get(kind, sent)
    if kind == "qwen25":
        return_to = parse(reply("pyautogui.click(0, 0)"), kind=kind, sent=sent)
        assert return_to.actions == ["pyautogui.click(0, 0)"]
        return
    x, y = at[0] * far[0], at[1] * far[1]
    if kind == "absolute" and sent == SCREEN:
        return
    (action,) = parse(reply(f"pyautogui.click({x!r}, {y!r})"), kind=kind, sent=sent).actions
    call = ast.parse(action).body[0].value  # type: ignore[attr-defined]
    for axis, given_at in enumerate(at):
        pixel = call.args[axis].value
        assert 0 <= pixel < SCREEN[axis]
        assert abs(pixel - given_at * SCREEN[axis]) <= 1


@pytest.mark.parametrize(
    ("code", "normal"),
    [
        ("pyautogui.press('Return')", "pyautogui.press('enter')"),
        ("pyautogui.press('Return', presses=3)", "pyautogui.press('enter', presses=3)"),
        ("pyautogui.hotkey('Control', 'Shift', 't')", "pyautogui.hotkey('ctrl', 'shift', 't')"),
        ("pyautogui.hotkey(['cmd', 'C'])", "pyautogui.hotkey(['win', 'C'])"),
        ("pyautogui.hotkey(*['cmd', 'C'])", "pyautogui.hotkey(*['win', 'C'])"),
        ("pyautogui.shortcut('Control', 'c')", "pyautogui.shortcut('ctrl', 'c')"),
        ("pyautogui.press(keys=['page_down', 'a'], presses=2)", "pyautogui.press(keys=['pagedown', 'a'], presses=2)"),
        ("pyautogui.press(('page_down', 'a'))", "pyautogui.press(('pagedown', 'a'))"),
        ("pyautogui.keyDown('Super_L')", "pyautogui.keyDown('winleft')"),
        ("pyautogui.keyUp(key='Super_L')", "pyautogui.keyUp(key='winleft')"),
        ("pyautogui.write(['a', 'Return', 'B'])", "pyautogui.write(['a', 'enter', 'B'])"),
        ("pyautogui.typewrite(message=('Page_Down',))", "pyautogui.typewrite(message=('pagedown',))"),
        ("from pyautogui import *\npress('Return')", "from pyautogui import *\npress('enter')"),
        ("k = 'Return'\npyautogui.press(k)", "k = 'enter'\npyautogui.press(k)"),
        ("k = ['a', 'Return']\npyautogui.write(k)", "k = ['a', 'enter']\npyautogui.write(k)"),
        ("[pyautogui.press(k) for k in ('Tab', 'Return')]", "[pyautogui.press(k) for k in ('tab', 'enter')]"),
        ("pyautogui.press(name)", "pyautogui.press(name)"),
        ("pyautogui.write('Return')", "pyautogui.write('Return')"),
        ("t = 'Page_Down'\npyautogui.write(t)", "t = 'Page_Down'\npyautogui.write(t)"),
        ("[pyautogui.write(t) for t in ['foo', 'bar']]", "[pyautogui.write(t) for t in ['foo', 'bar']]"),
        ("k = read()\nk = 'Tab'\npyautogui.press(k)", "k = read()\nk = 'tab'\npyautogui.press(k)"),
        ("for k in read(): k = 'Tab'; pyautogui.press(k)", "pass\nfor k in read(): k = 'Tab'; pyautogui.press(k)"),
    ],
)
def test_key_names_are_normalised(code: str, normal: str) -> None:
    assert parse(reply(code)).actions == [normal]
    (left,) = parse(reply(code), protocol_id="nano-omni-style-v1").actions
    assert left.removeprefix("pass\n") == code


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("pyautogui.press('anykey')", "press: there is no key named 'anykey'"),
        ("pyautogui.press('ctrl+c')", "press: there is no key named 'ctrl+c'"),
        ("pyautogui.press(['a', 'foo'])", "press: there is no key named 'foo'"),
        ("pyautogui.press(keys=['a', 'foo'], presses=2)", "press: there is no key named 'foo'"),
        ("pyautogui.press({'foo'})", "press: there is no key named 'foo'"),
        ("pyautogui.write(['a', 'Return', 'foo'])", "write: there is no key named 'foo'"),
        ("pyautogui.write(['a', 'Return', 'foo'], interval=0.1)", "write: there is no key named 'foo'"),
        ("pyautogui.typewrite(message=['foo'])", "typewrite: there is no key named 'foo'"),
        ("pyautogui.hotkey(['ctrl', 'foo'])", "hotkey: there is no key named 'foo'"),
        ("pyautogui.hotkey(*('ctrl', 'foo'))", "hotkey: there is no key named 'foo'"),
        ("pyautogui.hotkey('ctrl', 'shift', 'foo')", "hotkey: there is no key named 'foo'"),
        ("pyautogui.shortcut('ctrl', 'foo')", "shortcut: there is no key named 'foo'"),
        ("pyautogui.keyDown('foo')", "keyDown: there is no key named 'foo'"),
        ("pyautogui.keyUp(key='foo')", "keyUp: there is no key named 'foo'"),
        ("with pyautogui.hold(['shift', 'foo']): x()", "hold: there is no key named 'foo'"),
        ("from pyautogui import *; press('foo')", "press: there is no key named 'foo'"),
        ("from pyautogui import write as w; w(['foo'])", "write: there is no key named 'foo'"),
        ("for k in ['a', 'foo']: pyautogui.press(k)", "press: there is no key named 'foo'"),
        ("keys = ['a', 'foo']; pyautogui.write(keys)", "write: there is no key named 'foo'"),
        ("for pair in [('ctrl', 'foo')]: pyautogui.hotkey(*pair)", "hotkey: there is no key named 'foo'"),
        ("for k in ['Page_Down']: print(k); pyautogui.press(k)", "press: the key 'Page_Down' is called 'pagedown'"),
    ],
)
def test_an_unknown_key_is_a_parse_result(code: str, error: str) -> None:
    parsed = parse(reply(code))
    assert (parsed.failure_kind, parsed.error, parsed.actions) == ("unparseable", error, [])
    assert parsed.action_text == "Click it."


@pytest.mark.parametrize(
    ("content", "finish", "kind"),
    [
        ("", "stop", "empty_response"),
        ("  \n", None, "empty_response"),
        ("<think>so</think>\n", "stop", "empty_response"),
        ("", "length", "output_truncated"),
        ("## Thought:\nI see", "length", "output_truncated"),
        ("## Code:\n```python\npyautogui.click(10, 20)\npyautogui.press", "length", "output_truncated"),
        ("## Code:\npyautogui.click(10, 2", "length", "output_truncated"),
        ("## Code:\npyautogui.click(10, 20)", "length", "output_truncated"),
        ("## Code:\n```\nx()\n```\n```\ny()", "length", "output_truncated"),
        ("Hello", "stop", "unparseable"),
    ],
)
def test_failure_kinds(content: str, finish: str | None, kind: str) -> None:
    parsed = parse(content, finish=finish)
    assert (parsed.failure_kind, parsed.actions, parsed.terminal_action) == (kind, [], None)


def test_code_that_was_finished_before_the_limit_counts() -> None:
    assert parse(reply("x()") + "and so", finish="length").actions == ["x()"]


def test_code_that_begins_with_a_block_can_be_run_after_the_prefix() -> None:
    (action,) = parse(reply("for _ in range(3):\n    pyautogui.press('down')")).actions
    assert action == "pass\nfor _ in range(3):\n    pyautogui.press('down')"
    compile(runtime("canonical").code(action), "action", "exec")


DEEP = {
    "parentheses": "(" * 40_000,
    "signs": "-" * 40_000 + "x()",
    "signed places": "pyautogui.click(" + "-" * 900 + "1, 1)",
    "attributes": "a." * 20_000 + "b()",
    "calls": "a" + "()" * 20_000,
    "sums": "a()+" * 10_000 + "a()",
    "lambdas": "lambda:" * 7_000 + "a()",
    "digits": "pyautogui.click(" + "1" * 40_000 + ", 1)",
    "hexadecimal": "pyautogui.click(0x" + "f" * 40_000 + ", 1)",
    "spaces": "## " + " " * 40_000,
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP)
def test_hostile_code_is_a_parse_result(code: str) -> None:
    assert parse(reply(code), kind="relative").failure_kind in ("unparseable", None)
    assert parse(code + "\n" + reply("x()")).failure_kind in ("unparseable", None)


WORDS = """## Thought:
## Action:
## Code:
## Code
```
```python
~~~
<think>
</think>
pyautogui.click(0.5, 0.5)
pyautogui.click(x=
y=0.3
pyautogui.press('Return')
computer.wait()
computer.terminate(status='success')
computer.terminate(
import pyautogui as p
if x:
DONE
WAIT
FAIL""".splitlines()
MARKS = list("\n `;\\'\"()#\té\x00\ud800\x0c\r\u2028*:@")
PIECES = st.sampled_from([*WORDS, *MARKS, "    ", '"""'])
SHAPED = st.lists(st.one_of(PIECES, PIECES, st.text(max_size=5)), max_size=25).map("".join)
ANYTHING = st.one_of(st.text(), SHAPED, SHAPED.map(lambda code: f"## Code:\n{code}"), SHAPED.map(reply))


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@settings(max_examples=400)
@given(ANYTHING, st.sampled_from(["stop", "length", None]), st.sampled_from(["relative", "absolute"]))
def test_any_text_is_read_without_raising(content: str, finish: str | None, kind: CoordinateType) -> None:
    for protocol_id in ("pyautogui-code-v1", "nano-omni-style-v1"):
        parsed = parse(content, kind=kind, finish=finish, protocol_id=protocol_id)
        assert parsed == parse(content, kind=kind, finish=finish, protocol_id=protocol_id)
        if parsed.failure_kind:
            assert parsed.error
            assert not parsed.actions
            assert not parsed.terminal_action
        else:
            assert parsed.actions or parsed.terminal_action
            assert "code" in content.lower()
        for text in (parsed.error or "", parsed.kept_text, *parsed.actions):
            assert "\x00" not in text
            text.encode()
        for action in parsed.actions:
            assert action == "WAIT" or action.strip() not in ("", "DONE", "FAIL")
            compile(runtime("canonical").code(action), "action", "exec")
