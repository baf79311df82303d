"""Results of a phase's facts. The guest's failures take precedence, and only a completed evaluation gives a score."""

from typing import Any

import pytest

from rollbook.guest.exchanges import Exchange, ExchangeLog, Outcome
from rollbook.guest.http import Control
from rollbook.osworld.inside.phase import _score
from rollbook.osworld.results import ChildRun, GuestCheck, Phase, Verdict, interpret_results

SAME = GuestCheck("n1", "n1")
SCORED = ChildRun("exited", 0, {"completed": True, "value": 0.5, "score_type": "float", "score_text": "0.5"})
SET_UP = ChildRun("exited", 0, {"completed": True, "value": True})
RAISED = ChildRun("exited", 0, {"completed": False, "error_type": "KeyError", "error_message": "'result'"})


def log(*exchanges: tuple[int, Outcome, int | None]) -> ExchangeLog:
    made = ExchangeLog()
    made.add(Exchange(5000, "GET", "/terminal", Outcome.OK, 200, 0.0, 0.0, 10))
    for port, outcome, status in exchanges:
        made.add(Exchange(port, "POST", "/execute", outcome, status, 0.0, 0.0, 0))
    return made


def test_a_score_stands_as_it_was_returned() -> None:
    assert interpret_results("evaluate", SCORED, log(), SAME) == Verdict("ok", 0.5)


@pytest.mark.parametrize("phase", ["prepare", "postconfig", "evaluate"])
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.REFUSED, None),
        (Outcome.UNREACHABLE, None),
        (Outcome.RESET, 200),
        (Outcome.TIMEOUT, None),
        (Outcome.ABANDONED, None),
        (Outcome.REDIRECTED, 302),
        (Outcome.GARBLED, 200),
        (Outcome.BROKEN, None),
        (Outcome.HTTP_5XX, 502),
        (Outcome.HTTP_5XX, 503),
        (Outcome.HTTP_5XX, 504),
    ],
)
def test_an_undelivered_exchange_spoils_any_phase(phase: Phase, outcome: Outcome, status: int | None) -> None:
    run = SCORED if phase == "evaluate" else SET_UP
    verdict = interpret_results(phase, run, log((5000, outcome, status)), SAME)
    assert (verdict.status, verdict.value, verdict.error_type) == ("failed", None, "GuestExchangeFailed")
    assert verdict.guest_failed
    assert "POST /execute" in verdict.error_message


@pytest.mark.parametrize(
    ("outcome", "status"), [(Outcome.HTTP_5XX, 500), (Outcome.TIMEOUT, None), (Outcome.TOO_LONG, 200)]
)
def test_a_control_decides_whose_failure_it_was(outcome: Outcome, status: int | None) -> None:
    def verdict(control: Control) -> Verdict:
        made = log()
        made.add(Exchange(5000, "POST", "/execute", outcome, status, 0.0, 0.0, 0, control=control))
        return interpret_results("evaluate", SCORED, made, SAME)

    assert verdict("passed") == Verdict("ok", 0.5)
    assert (verdict("refused").error_type, verdict("refused").guest_failed) == ("GuestBroken", False)
    assert (verdict("unanswered").error_type, verdict("unanswered").guest_failed) == ("GuestExchangeFailed", True)


def test_a_500_without_a_control_spoils_an_evaluation_but_is_a_fact_of_a_setup() -> None:
    evaluated = interpret_results("evaluate", SCORED, log((5000, Outcome.HTTP_5XX, 500)), SAME)
    assert (evaluated.status, evaluated.value, evaluated.guest_failed) == ("failed", None, True)
    assert interpret_results("prepare", SET_UP, log((5000, Outcome.HTTP_5XX, 500)), SAME) == Verdict("ok", True)
    raised = interpret_results("postconfig", RAISED, log((5000, Outcome.HTTP_5XX, 500)), SAME)
    assert (raised.status, raised.error_type, raised.guest_failed) == ("failed", "KeyError", False)


def test_a_question_cut_short_by_the_evaluators_own_death_is_not_the_guests_fault() -> None:
    verdict = interpret_results("evaluate", ChildRun("exited", -9, None), log((5000, Outcome.ABANDONED, None)), SAME)
    assert (verdict.error_type, verdict.guest_failed) == ("EvaluatorDied", False)
    verdict = interpret_results("evaluate", ChildRun("exited", -9, None), log((9222, Outcome.ABANDONED, None)), SAME)
    assert (verdict.error_type, verdict.guest_failed) == ("EvaluatorDied", False)


def test_a_404_and_closed_applications_are_facts() -> None:
    facts = log((5000, Outcome.HTTP_4XX, 404), (9222, Outcome.REFUSED, None), (8080, Outcome.RESET, None))
    assert interpret_results("evaluate", SCORED, facts, SAME) == Verdict("ok", 0.5)
    gateway = log((9222, Outcome.HTTP_5XX, 502), (8080, Outcome.HTTP_4XX, 401))
    assert interpret_results("evaluate", SCORED, gateway, SAME) == Verdict("ok", 0.5)


@pytest.mark.parametrize("port", [9222, 8080])
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.TIMEOUT, None),
        (Outcome.ABANDONED, None),
        (Outcome.UNREACHABLE, None),
        (Outcome.REDIRECTED, 302),
        (Outcome.GARBLED, 200),
        (Outcome.BROKEN, None),
    ],
)
def test_an_application_that_does_not_speak_is_not_a_closed_one(
    port: int, outcome: Outcome, status: int | None
) -> None:
    """A desktop that hung while it was looked at scored 0.0, with its nonce in order right afterwards."""
    verdict = interpret_results("evaluate", SCORED, log((port, outcome, status)), SAME)
    assert (verdict.status, verdict.value, verdict.error_type) == ("failed", None, "GuestExchangeFailed")
    assert verdict.guest_failed
    assert f"1 exchange(s) with the guest failed: POST /execute on port {port}: {outcome}" in verdict.error_message
    assert interpret_results("prepare", SET_UP, log((port, outcome, status)), SAME) == Verdict("ok", True)


@pytest.mark.parametrize("run", [SCORED, RAISED, ChildRun("timeout", None, None), ChildRun("exited", -9, None)])
@pytest.mark.parametrize(
    ("guest", "kind"), [(GuestCheck("n1", None, "refused"), "GuestLost"), (GuestCheck("n1", "n2"), "GuestReplaced")]
)
def test_a_guest_that_is_gone_or_another_one_wins_over_every_other_fact(
    run: ChildRun, guest: GuestCheck, kind: str
) -> None:
    verdict = interpret_results("evaluate", run, log(), guest)
    assert (verdict.value, verdict.error_type, verdict.guest_failed) == (None, kind, True)


@pytest.mark.parametrize(
    ("run", "status", "kind"),
    [
        (ChildRun("timeout", None, None), "timeout", "PhaseTimeout"),
        (ChildRun("memory", None, None), "failed", "MemoryLimit"),
        (ChildRun("exited", -9, None), "failed", "EvaluatorDied"),
        (ChildRun("exited", 1, None), "failed", "EvaluatorDied"),
        (ChildRun("exited", 0, None), "failed", "EvaluatorDied"),
        (RAISED, "failed", "KeyError"),
        (ChildRun("exited", 0, {}), "failed", "EvaluatorDied"),
        (ChildRun("exited", 0, {"completed": "yes", "value": 1}), "failed", "EvaluatorDied"),
    ],
)
def test_what_the_evaluator_itself_broke_is_not_the_guests_fault(run: ChildRun, status: str, kind: str) -> None:
    verdict = interpret_results("evaluate", run, log(), SAME)
    assert (verdict.status, verdict.value, verdict.error_type, verdict.guest_failed) == (status, None, kind, False)


@pytest.mark.parametrize("value", [None, True, False, -0.1, 1.5, 2, float("nan"), float("inf"), "1", [1]])
def test_only_a_number_from_0_to_1_is_a_score(value: Any) -> None:
    verdict = interpret_results("evaluate", ChildRun("exited", 0, {"completed": True, "value": value}), log(), SAME)
    assert (verdict.status, verdict.value, verdict.error_type) == ("failed", None, "InvalidScore")


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.3])
def test_zero_one_and_fractions_are_scores(value: float) -> None:
    assert (
        interpret_results("evaluate", ChildRun("exited", 0, {"completed": True, "value": value}), log(), SAME).value
        == value
    )


@pytest.mark.parametrize("value", [False, None, 1, "True"])
def test_setup_counts_only_when_it_returned_true(value: Any) -> None:
    verdict = interpret_results("prepare", ChildRun("exited", 0, {"completed": True, "value": value}), log(), SAME)
    assert (verdict.status, verdict.error_type) == ("failed", "SetupReturnedFalse")


class NumpyLike:
    """A double of numpy's scalars, which are not Python numbers; numpy itself is not installed here."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def item(self) -> Any:
        return self.plain


@pytest.mark.parametrize(
    ("score", "value", "kind"),
    [
        (1, 1, "int"),
        (0.25, 0.25, "float"),
        (True, 1, "bool"),
        (False, 0, "bool"),
        (None, None, "NoneType"),
        (float("nan"), None, "float"),
        (float("-inf"), None, "float"),
        ("1.0", None, "str"),
        (NumpyLike(True), 1, "NumpyLike"),
        (NumpyLike(0.5), 0.5, "NumpyLike"),
    ],
)
def test_the_runner_reports_value_and_type(score: Any, value: Any, kind: str) -> None:
    answer = _score(score)
    assert (answer["value"], answer["score_type"]) == (value, kind)
    assert type(answer["value"]) in (int, float, type(None))
