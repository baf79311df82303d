"""Names of keys as models write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.policies.keys import chord, known_combination, known_key

SAME = {
    "enter": ["Return", "return", "ENTER", "KP_Enter", "\n", " enter "],
    "ctrl": ["Ctrl", "control", "CTRL"],
    "ctrlleft": ["Control_L", "ctrlleft"],
    "win": ["cmd", "Command", "Super", "meta", "Windows", "win"],
    "pagedown": ["page_down", "Page Down", "PageDown", "pgdn", "Next"],
    "pageup": ["page-up", "PRIOR", "pgup"],
    "esc": ["Escape", "esc", "\x1b"],
    "left": ["ArrowLeft", "Left", "left_arrow"],
    "alt": ["Alt", "option"],
    "space": [" ", "space", "SpaceBar"],
    "delete": ["Del", "delete"],
    "backspace": ["BackSpace", "\b"],
    "printscreen": ["Print", "PrtSc", "print_screen"],
    "apps": ["Menu", "context_menu"],
    "f12": ["F12"],
    "num7": ["KP_7", "numpad7", "num7"],
    "+": ["plus", "+"],
    "A": ["A"],
    "é": ["é"],
}


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in SAME.items() for name in names])
def test_names_of_the_same_key(key: str, name: str) -> None:
    assert known_key(name) == key


@pytest.mark.parametrize(
    "name", ["", "anykey", "f13", "select", "ctrl+c", "fn", "volumeup", "\x00", "\ud800", "中国", "_", "enter\x00"]
)
def test_what_is_no_key(name: str) -> None:
    """`volumeup`, `fn`, `select` and `f13` are names of pyautogui's that press nothing on a Linux desktop."""
    assert known_key(name) == ("_" if name == "_" else None)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ctrl+c", ["ctrl", "c"]),
        ("Ctrl + Shift + T", ["ctrl", "shift", "T"]),
        ("ctrl-alt-Delete", ["ctrl", "alt", "delete"]),
        ("ctrl++", ["ctrl", "+"]),
        ("ctrl+-", ["ctrl", "-"]),
        ("ctrl--", ["ctrl", "-"]),
        ("+", ["+"]),
        ("page-down", ["pagedown"]),
        ("Page_Down", ["pagedown"]),
        ("ctrl+anykey", None),
        ("ctrl+", None),
        ("+c", None),
        ("++", None),
        ("", None),
    ],
)
def test_combinations(text: str, keys: list[str] | None) -> None:
    assert known_combination(text) == keys


def test_a_letter_beside_a_modifier_is_the_key() -> None:
    assert chord(["ctrl", "C"]) == ["ctrl", "c"]
    assert chord(["C"]) == ["C"]
    assert chord(["a", "B"]) == ["a", "B"]


@given(st.text(st.characters(exclude_categories=[]), max_size=12))
def test_any_text_is_a_key_or_not(text: str) -> None:
    key = known_key(text)
    assert key is None or known_key(key) == key
    keys = known_combination(text)
    assert keys is None or [known_key(name) for name in keys] == keys
