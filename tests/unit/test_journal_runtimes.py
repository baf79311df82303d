"""Code that the runtimes produce from an action, without a guest."""

import ast

import pytest

from rollbook.desktop.runtimes import CANONICAL, EXACT_INPUT, PREAMBLE, repair_less_than, runtime
from rollbook.errors import InvalidInput

LESS = 'pyautogui.hotkey("shift", ",")'


@pytest.mark.parametrize(
    ("action", "mended"),
    [
        ("pyautogui.press('<')", LESS),
        ('pyautogui.press("<")', LESS),
        (r"pyautogui.press('\u003c')", LESS),
        ("pyautogui.typewrite('<')", LESS),
        ("pyautogui.typewrite('a<b')", f"pyautogui.typewrite('a'); {LESS}; pyautogui.typewrite('b')"),
        ("pyautogui.typewrite('<<')", f"{LESS}; {LESS}"),
        ("pyautogui.typewrite('a<')", f"pyautogui.typewrite('a'); {LESS}"),
        ("x = 1; pyautogui.press('<'); y = 2", f"x = 1; {LESS}; y = 2"),
        ("if True:\n    pyautogui.typewrite('é<')\n", f"if True:\n    pyautogui.typewrite('é'); {LESS}\n"),
        ("s = 'é中'; pyautogui.press('<')", f"s = 'é中'; {LESS}"),
        ("pyautogui.press('<')\npyautogui.press('<')", f"{LESS}\n{LESS}"),
        ("pyautogui.typewrite(\n  'a<'\n)", f"pyautogui.typewrite('a'); {LESS}"),
    ],
)
def test_literal_forms_are_mended(action: str, mended: str) -> None:
    assert repair_less_than(action) == mended
    ast.parse(mended)


@pytest.mark.parametrize(
    "action",
    [
        "pyautogui.write('a<b')",
        "pyautogui.typewrite('a<b', interval=0.1)",
        "pyautogui.typewrite(text)",
        "pyautogui.typewrite(['<'])",
        "pyautogui.hotkey('ctrl', '<')",
        "pyautogui.press('<', presses=2)",
        "pyautogui.press('a')",
        "pyautogui.typewrite('ab')",
        "print('pyautogui.press(\"<\")')",
        "this is < no python (",
        "",
        "x = '\0'",
    ],
)
def test_other_forms_keep_the_bug_as_in_osworld(action: str) -> None:
    assert repair_less_than(action) == action


def test_what_an_action_types_is_not_changed_by_the_repair() -> None:
    action = r"pyautogui.typewrite('\t\'<\n\\')"
    typed = []
    for statement in ast.parse(repair_less_than(action)).body:
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        function = ast.unparse(statement.value.func)
        typed.append("<" if function == "pyautogui.hotkey" else ast.literal_eval(statement.value.args[0]))
    assert "".join(typed) == "\t'<\n\\"


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
