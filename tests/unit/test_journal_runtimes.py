"""Code that the runtimes produce from an action, without a guest."""

import ast

import pytest

from rollbook.desktop.runtimes import CANONICAL, EXACT_INPUT, PREAMBLE, repair_less_than, runtime
from rollbook.errors import InvalidInput

LESS = 'pyautogui.hotkey("shift", ",")'


@pytest.mark.parametrize(
    ("action", "repaired"),
    [
        ("pyautogui.press('<')", LESS),
        ("pyautogui.typewrite('a<b')", f"pyautogui.typewrite('a'); {LESS}; pyautogui.typewrite('b')"),
        ("pyautogui.typewrite('<<')", f"{LESS}; {LESS}"),
        ("x = 1; pyautogui.press('<'); y = 2", f"x = 1; {LESS}; y = 2"),
        ("pyautogui.write('a<b')", "pyautogui.write('a<b')"),
        ("this is < no python (", "this is < no python ("),
    ],
)
def test_the_repair_of_less_than(action: str, repaired: str) -> None:
    """`tests/integration/osworld/test_repair.py` compares it with OSWorld's own function."""
    assert repair_less_than(action) == repaired


def test_the_canonical_program_is_osworlds() -> None:
    assert CANONICAL.code("pyautogui.click(1, 2)") == (
        "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.click(1, 2)"
    )


def test_an_action_that_begins_with_a_block_is_a_syntax_error_in_both_as_in_osworld() -> None:
    for one in (CANONICAL, EXACT_INPUT):
        with pytest.raises(SyntaxError):
            ast.parse(one.code("for i in range(3): pyautogui.press('a')"))


def test_exact_input_ends_with_the_same_program_and_the_action_untouched() -> None:
    program = EXACT_INPUT.code("pyautogui.typewrite('a<b')")
    assert program.endswith(f"\n{PREAMBLE}pyautogui.typewrite('a<b')")
    assert ast.parse(program)


def test_runtimes_are_found_by_id() -> None:
    assert runtime("canonical") is CANONICAL
    assert runtime("exact-input-2") is EXACT_INPUT
    with pytest.raises(InvalidInput, match="action_runtime"):
        runtime("fast")
