"""Output of the CLI: clean cells, aligned tables, one JSON document."""

import json
from datetime import UTC, datetime

import pytest
from rich.console import Console

from models.batch import Counts
from rollbook.cli import out
from rollbook.cli.report import _print_samples, print_scoreboard
from rollbook.cli.status import BAR, Ended, _bar, _Lines, line, read_floor
from rollbook.errors import InvalidInput


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.8, "0.8"),
        (2 / 3, "0.6667"),
        (7, "7"),
        ("a\n b", "a b"),
    ],
)
def test_cells(value: out.Cell, shown: str) -> None:
    assert out.cell(value) == shown


def test_control_characters_of_a_guest_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in out.clean("\x1b[31mred\x1b]0;title\x07")
    assert out.clean("é – €") == "é – €"
    assert out.clean("x" * 50, 10) == "x" * 9 + "…"


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_table(("NAME", "N"), [("a", 5), ("longer", 12), ("none", None)])
    assert capsys.readouterr().out.splitlines() == ["NAME     N", "a        5", "longer  12", "none     -"]


def test_markup_in_data_is_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "is_terminal", lambda: True)
    out.print_table(("WHAT",), [("[bold]hotkey['ctrl'][/bold]",)])
    assert "[bold]hotkey['ctrl'][/bold]" in capsys.readouterr().out


def test_json_is_one_document_with_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_json({"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "name": "é"})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-01-02T03:04:05.000+00:00", "name": "é"}


def test_json_never_holds_nan() -> None:
    with pytest.raises(ValueError):
        out.print_json({"score": float("nan")})


def test_unknown_fields_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_fields({"batch": "b1", "note": "", "time left": None, "n": 0})
    assert capsys.readouterr().out.splitlines() == ["batch: b1", "n:     0"]


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, shown: str) -> None:
    assert out.duration(seconds) == shown


COUNTS = Counts(planned=10, waiting=3, running=2, admitted=4, masked=1)


def test_the_progress_line_adds_up() -> None:
    assert line("running", COUNTS, 90.0) == (
        "running: 5/10 final (4 admitted, 1 masked), 2 running, 3 waiting, about 1 min 30 s left"
    )


@pytest.mark.parametrize("counts", [COUNTS, Counts(), Counts(planned=361, waiting=360, running=1)])
def test_the_bar_has_one_width(counts: Counts) -> None:
    width = sum(len(text) for text, _ in _bar(counts))
    assert width == (BAR if counts.planned else 0)


def test_plain_progress_repeats_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show = _Lines()
    for attempt in (2, 3, 4):
        show("running", COUNTS, None, [f"pump fails, try {attempt}: no ledger"])
    show("paused", COUNTS, None, [])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1] == "trouble: pump fails, try 2: no ledger"


def _row(domain: str, **changes: object) -> dict[str, object]:
    row = dict.fromkeys(
        (
            "binary_success_rate_of_admitted",
            "mean_score_of_admitted",
            "wilson_low_of_admitted",
            "wilson_high_of_admitted",
        )
    )
    counted = {"domain": domain, "planned": 4, "admitted": 0, "masked": 4, "binary_success_count": 0, "attempts": 12}
    rates = {
        "binary_success_rate_of_planned": 0.0,
        "mean_score_of_planned": 0.0,
        "wilson_low_of_planned": 0.0,
        "wilson_high_of_planned": 0.49,
    }
    return {**row, **counted, **rates, "reruns": 1, "superseded": 0, "evaluated_then_closed": 0} | {
        "desktop_broken": 0,
        "further_attempts": 0,
        "binary_success_rate_of_first_attempts": 0.0,
        "wilson_low_of_first_attempts": 0.0,
        "wilson_high_of_first_attempts": 0.49,
        **changes,
    }


def test_a_scoreboard_without_admitted_rollouts_shows_no_rate_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_scoreboard([_row("os"), _row("(all)")])
    text = capsys.readouterr().out
    assert text.splitlines()[1].split() == ["os", "4", "0", "4", "0", "0.0%", "[0%,", "49%]", "-", "0.0", "-"]
    assert "(all)" not in text, "one domain is the whole: its row stands once"
    assert "12 attempts for 4 rollouts" in text


def test_rates_of_samples_stand_beside_the_tasks_of_their_denominator(capsys: pytest.CaptureFixture[str]) -> None:
    planned = {"pass_at_k_of_planned": 0.5, "pass_hat_k_of_planned": 0.25, "tasks_of_planned": 4}
    one = {"k": 1, "pass_at_k_of_admitted": 0.75, "pass_hat_k_of_admitted": 0.5, "tasks_of_admitted": 3}
    none = {"k": 2, "pass_at_k_of_admitted": None, "pass_hat_k_of_admitted": None, "tasks_of_admitted": 0}
    _print_samples([planned | one, planned | none], None)
    head, *lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert "PASS^K OF PLANNED  TASKS OF PLANNED  PASS@K OF ADMITTED" in head
    assert head.endswith("TASKS OF ADMITTED")
    assert [line.split() for line in lines] == [
        ["1", "0.5", "0.25", "4", "0.75", "0.5", "3"],
        ["2", "0.5", "0.25", "4", "-", "-", "0"],
    ]


def test_superseded_results_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_scoreboard([_row("os"), _row("vlc"), _row("(all)", superseded=2, evaluated_then_closed=3)])
    told = capsys.readouterr().out
    assert "2 results that had counted were superseded" in told
    assert "3 attempts were evaluated and then did not count" in told


def test_one_superseded_result_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_scoreboard([_row("os"), _row("vlc"), _row("(all)", superseded=1, evaluated_then_closed=1)])
    told = capsys.readouterr().out
    assert "1 result that had counted was superseded" in told
    assert "1 attempt was evaluated and then did not count" in told
    assert "1 rerun requested" in told


def test_further_attempts_and_broken_desktops_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_scoreboard([_row("(all)", further_attempts=2, desktop_broken=1)])
    lines = capsys.readouterr().out
    assert (
        "2 further attempts were made after the agent had acted; success of first attempts, of planned: 0.0%" in lines
    )
    assert "1 attempt broke the desktop after the agent acted" in lines


def test_addresses_in_a_terminal_table_are_whole_links(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "is_terminal", lambda: True)
    monkeypatch.setattr(out, "console", lambda: Console(force_terminal=True, width=40))
    url = f"http://127.0.0.1:8288/artifacts/{'ab' * 32}"
    out.print_table(("SCREENSHOT",), [(url,)])
    shown = capsys.readouterr().out
    assert f";{url}\x1b\\" in shown
    assert "abababababababab" in shown


ID = "quickstart-1129-192901"
STATUS = ("BATCH", "STATE", "PLANNED", "WAITING", "RUNNING", "ADMITTED", "MASKED", "POLICY", "CREATED")


@pytest.fixture
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setattr(out, "is_terminal", lambda: True)
    monkeypatch.setattr(out, "console", lambda: Console(width=80, markup=False, highlight=False))


@pytest.mark.usefixtures("eighty")
def test_a_narrow_terminal_breaks_no_id_and_no_state(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows: list[list[out.Cell]] = [[ID, "stopping", 48, 40, 2, 5, 1, "scripted", at]]
    out.print_table(STATUS, rows, optional=("CREATED", "POLICY"))
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [*STATUS[:7]]
    assert row.split() == [ID, "stopping", "48", "40", "2", "5", "1"]
    assert len(row) <= 80


@pytest.mark.usefixtures("eighty")
def test_prose_gives_way_to_names(capsys: pytest.CaptureFixture[str]) -> None:
    prose = "the desktop did not answer within a minute " * 4
    columns = ("ATTEMPT", "ENDED AS", "STEPS", "EVALUATION", "DETAIL")
    out.print_table(columns, [["1 *", "sandbox_start_failed", 0, None, prose]])
    lines = capsys.readouterr().out.splitlines()
    assert "sandbox_start_failed" in lines[1]
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(line[48:] for line in lines[1:]).split()).startswith("the desktop did not answer within")


@pytest.mark.usefixtures("eighty")
def test_an_id_that_fits_no_terminal_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_table(("ROLLOUT", "STATE"), [["r" * 120, "admitted"]])
    assert "r" * 120 in capsys.readouterr().out


@pytest.mark.usefixtures("eighty")
def test_long_words_of_prose_break_before_the_table_overflows(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_table(("STATE", "WHAT", "DETAIL"), [["masked", "x" * 100, "y" * 100]])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(("text", "floor"), [(None, 0), ("0", 0), ("7", 7), ("90%", 9), ("91%", 10), ("100%", 10)])
def test_a_floor_is_a_number_or_a_share_of_the_planned(text: str | None, floor: int) -> None:
    assert read_floor(text)(Counts(planned=10)) == floor


@pytest.mark.parametrize("text", ["", "-1", "0.5", "101%", "many"])
def test_other_floors_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--min-admitted: "):
        read_floor(text)


@pytest.mark.parametrize(("state", "admitted", "code"), [("complete", 9, 0), ("complete", 8, 1), ("stopped", 10, 1)])
def test_fewer_admitted_than_demanded_is_a_failure(state: str, admitted: int, code: int) -> None:
    assert Ended(state, Counts(planned=10, admitted=admitted)).code_with(read_floor("9")) == code
