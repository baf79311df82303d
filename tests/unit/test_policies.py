"""The policies without a model: what they say, and that they report facts only."""

import json
from typing import Any

import pytest

from models.outcome import POLICY_STOPS
from rollbook.errors import InvalidInput
from rollbook.policies.base import Answer, split_terminal, summary_of
from rollbook.policies.scripted import ScriptPlayer, Waits, read_script


class Said(Exception):
    """Carries the answer that a policy wanted to commit."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class Ear:
    """A call log that only listens: the ledger's side of `decide` has tests of its own."""

    async def until_now(self) -> list[Any]:
        return []

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> Any:
        assert parse_attempt == 1
        raise Said(answer)


class Step:
    """As much of a turn as these policies look at: they see neither the screen nor the contract."""

    def __init__(self, step: int) -> None:
        self.step = step


async def answer(policy: Any, step: int) -> Answer:
    with pytest.raises(Said) as said:
        await policy.decide(Step(step), Ear())
    return said.value.answer


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_noop_waits_then_says_done(waits: int) -> None:
    policy = Waits(waits)
    for step in range(1, waits + 1):
        said = await answer(policy, step)
        assert (said.actions, said.terminal_action) == ([], None)
    said = await answer(policy, waits + 1)
    assert (said.actions, said.terminal_action, said.model_name) == ([], "DONE", "noop")
    assert said.accepted


SCRIPT: dict[str, Any] = {
    "schema_version": 1,
    "note": "how to",
    "tasks": {
        "t1": {
            "steps": [
                {"thought": "click it", "actions": ["pyautogui.click(1, 2)", "WAIT"]},
                {"actions": ["pyautogui.press('enter')", "DONE", "pyautogui.never()"]},
            ]
        },
        "t2": {"steps": [{"stop": "model_response_unparseable"}]},
    },
    "default": {"steps": [{"actions": ["FAIL"]}]},
}


async def test_a_script_is_played_step_by_step() -> None:
    policy = ScriptPlayer(read_script(SCRIPT).tasks["t1"])
    first, second, third = [await answer(policy, step) for step in (1, 2, 3)]
    assert (first.actions, first.terminal_action) == (["pyautogui.click(1, 2)", "WAIT"], None)
    assert (second.actions, second.terminal_action) == (["pyautogui.press('enter')"], "DONE")
    assert (third.actions, third.terminal_action, third.policy_stop_reason) == ([], None, None), "nothing left to say"
    assert json.loads(first.response or b"")["thought"] == "click it"
    # asked again after a crash, it says the same
    assert await answer(policy, 1) == first


async def test_a_stop_is_reported_not_dressed_up() -> None:
    said = await answer(ScriptPlayer(read_script(SCRIPT).tasks["t2"]), 1)
    assert (said.policy_stop_reason, said.terminal_action, said.actions) == ("model_response_unparseable", None, [])
    assert not said.accepted


async def test_a_task_without_a_script_gets_no_action() -> None:
    said = await answer(ScriptPlayer(None), 1)
    assert (said.actions, said.terminal_action) == ([], None)


def script(*steps: Any) -> dict[str, Any]:
    return {"tasks": {"t": {"steps": list(steps)}}}


BAD: list[tuple[Any, str]] = [
    (None, "script: "),
    ([], "script: "),
    ({}, "tasks: required"),
    ({"tasks": {}, "task": {}}, "task: unknown key"),
    ({"tasks": {}, "schema_version": 2}, "schema_version: "),
    (script(), "tasks.t.steps: "),
    (script({"action": ["WAIT"]}), "tasks.t.steps.0.action: unknown key"),
    (script({"actions": "WAIT"}), "tasks.t.steps.0.actions: "),
    (script({"actions": [1]}), "tasks.t.steps.0.actions.0: "),
    (script({"actions": ["a\x00b"]}), "tasks.t.steps.0.actions.0: "),
    (script({"stop": "gave_up"}), "'stop' must be one of"),
    (script({"stop": "max_steps"}), "'stop' must be one of"),
    (script({"stop": POLICY_STOPS[0], "actions": ["WAIT"]}), "either 'actions' or 'stop'"),
]


@pytest.mark.parametrize(("raw", "message"), BAD)
def test_an_unsound_script_names_the_place(raw: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_script(raw)
    assert message in str(caught.value)
    assert str(caught.value).startswith("script: ")


def test_every_policy_stop_can_be_played() -> None:
    for stop in POLICY_STOPS:
        assert read_script(script({"stop": stop})).tasks["t"].steps[0].stop == stop


@pytest.mark.parametrize(
    ("actions", "kept", "terminal"),
    [
        ([], [], None),
        (["WAIT"], ["WAIT"], None),
        (["DONE"], [], "DONE"),
        ([" FAIL\n"], [], "FAIL"),
        (["a", "FAIL", "DONE", "b"], ["a"], "FAIL"),
        (["done"], ["done"], None),
        (["print('DONE')"], ["print('DONE')"], None),
    ],
)
def test_nothing_after_a_terminal_action_is_run(actions: list[str], kept: list[str], terminal: str | None) -> None:
    assert split_terminal(actions) == (kept, terminal)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (Answer(), "no action"),
        (Answer(["pyautogui.click(1,\n  2)"]), "click(1, 2)"),
        (Answer(["WAIT"], "DONE"), "WAIT; DONE"),
        (Answer(policy_stop_reason="model_response_empty"), "model_response_empty"),
    ],
)
def test_a_summary_is_one_short_line(said: Answer, line: str) -> None:
    assert summary_of(said) == line
    assert len(summary_of(Answer(["x" * 500]))) == 80
