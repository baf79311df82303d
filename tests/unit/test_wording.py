"""The wording check of `make lint` finds banned words where they are text, and leaves data alone."""

import pytest

from scripts.check_wording import problems


def words(name: str, source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text, _ in problems(name, source)]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", '"""Whether it runs."""', [(1, "Whether")]),
        ("a.py", 'x = 1\n"""How many."""', [(2, "How")]),
        ("a.py", "# nobody reads this", [(1, "nobody")]),
        ("a.py", 'raise ValueError(f"{x} is no number")', [(1, "is no")]),
        ("a.py", '"""One.\n\nHeld\nagainst two."""', [(3, "Held against")]),
        ("a.sql", "-- see DESIGN §3", [(1, "§")]),
        ("a.md", "It stands below.\n\nIt mends nothing.", [(1, "stands"), (3, "mends")]),
        ("a.py", 'user = "nobody"', []),
        ("a.py", '"""Return the rows; there is no order, and it is no longer one."""', []),
        ("a.py", "# the user nobody  wording: ok\nnobody = told = 1", []),
        ("tests/a.py", 'text = "tell somebody a story"', []),
        ("a.md", "A stand-in stands for a desktop. The unofficial bellows.", []),
    ],
)
def test_words(name: str, source: str, expected: list[tuple[int, str]]) -> None:
    assert words(name, source) == expected
