"""Reading code out of replies without sections: fenced blocks and the three words, and that nothing else ever runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.desktop.runtimes import runtime
from rollbook.policies.protocols.base import CoordinateType, Parsed, ReplyView
from rollbook.policies.protocols.registry import protocol

SCREEN = (1920, 1080)


def parse(content: str, *, kind: CoordinateType = "absolute", finish: str | None = "stop") -> Parsed:
    spoken = protocol("pyautogui-plain-v1", {"coordinate_type": kind})
    return spoken.parse(ReplyView(content, None, (), finish), SCREEN, SCREEN)


@pytest.mark.parametrize(
    ("content", "actions", "terminal"),
    [
        ("I click.\n```python\npyautogui.click(1, 2)\n```\nThen we will see.", ["pyautogui.click(1, 2)"], None),
        ("```\npyautogui.click(1, 2)\n```", ["pyautogui.click(1, 2)"], None),
        ("```pyautogui.click(1, 2)```", ["pyautogui.click(1, 2)"], None),
        ("```python\npyautogui.click(1, 2)", ["pyautogui.click(1, 2)"], None),
        ("```python\nx()\n```\nand\n~~~py\ny()\n~~~", ["x()", "y()"], None),
        ("WAIT", ["WAIT"], None),
        (" DONE\n", [], "DONE"),
        ("FAIL", [], "FAIL"),
        ("I wait.\n```\nWAIT\n```", ["WAIT"], None),
        ("All is saved.\n```DONE```", [], "DONE"),
        ("```python\nx()\nDONE\n```", ["x()"], "DONE"),
        ("```python\nx()\n```\n```\nDONE\n```\n```\ny()\n```", ["x()"], "DONE"),
        ("```python\ncomputer.terminate(status='failure')\n```", [], "FAIL"),
        ("<think>```\nz()\n```</think>```\nx()\n```", ["x()"], None),
    ],
)
def test_blocks_and_words(content: str, actions: list[str], terminal: str | None) -> None:
    parsed = parse(content)
    assert (parsed.actions, parsed.terminal_action, parsed.error) == (actions, terminal, None)


@pytest.mark.parametrize(
    "content",
    [
        "pyautogui.click(1, 2)",
        "I will click: pyautogui.click(1, 2)",
        "## Code:\npyautogui.click(1, 2)",
        "I am DONE",
        "DONE.",
        "done",
        "Click `pyautogui.click(1, 2)`.",
        "```python\nx()\n```\n```bash\nls -l /tmp\n```",
        "```python\n```",
        "```python\npyautogui.press('foo')\n```",
        "<think>```\npyautogui.click(1, 2)\n```",
    ],
)
def test_nothing_else_runs(content: str) -> None:
    parsed = parse(content)
    assert (parsed.actions, parsed.terminal_action) == ([], None)
    assert parsed.failure_kind in ("unparseable", "empty_response")
    assert parsed.error


def test_places_are_projected_or_refused() -> None:
    assert parse("```\npyautogui.click(0.5, 0.5)\n```", kind="relative").actions == ["pyautogui.click(960, 540)"]
    assert parse("```\npyautogui.click(*p)\n```", kind="relative").failure_kind == "unparseable"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("```\nx()", "output_truncated"),
        ("WAIT", "output_truncated"),
        ("", "output_truncated"),
        ("```\nx()\n```\nand so", None),
    ],
)
def test_what_was_cut_off_is_not_run(content: str, kind: str | None) -> None:
    assert parse(content, finish="length").failure_kind == kind
    assert parse("").failure_kind == "empty_response"


def test_what_was_said_is_kept_without_the_code() -> None:
    parsed = parse("I click.\n```python\npyautogui.click(1, 2)\n```\nThen we will see.")
    assert parsed.kept_text == "## Thought:\nI click.\nThen we will see."


@given(st.lists(st.sampled_from([*"`~\n x()", "```", "DONE", "WAIT", "x()\n", "</think>", "\x00"]), max_size=20))
def test_any_text_is_read_without_raising(pieces: list[str]) -> None:
    parsed = parse("".join(pieces), kind="relative")
    assert bool(parsed.error) == bool(parsed.failure_kind)
    assert bool(parsed.error) != bool(parsed.actions or parsed.terminal_action)
    for action in parsed.actions:
        compile(runtime("canonical").code(action), "action", "exec")
