"""The do-nothing desktop's draw: the same ends for the same attempts, on every machine and in every deployment."""

from pathlib import Path

import pytest

from models.contract import Resolved
from models.spec import contract_of, read_spec
from rollbook.desktop.driver import Files, Job
from rollbook.errors import InfraError
from rollbook.sandboxes.null import NullDriver


async def keep(files: dict[str, bytes]) -> Files:
    """Nothing is kept."""
    return {}


SPEC = {"task_set": "demo", "policy": {"kind": "noop"}}


async def end(rollout_key: str, attempt_index: int, seed: int) -> str:
    """The score of an attempt, or the reason why it has none."""
    driver = NullDriver(rollout_key, attempt_index)
    job = Job(
        task={},
        contract=contract_of(read_spec(SPEC | {"seed": seed}), Resolved()),
        work_dir=Path("."),
        timeout_s=1,
        token="",
    )
    try:
        await driver.prepare(job, lambda note: None, keep)
        await driver.postconfig(job, lambda note: None, keep)
    except InfraError as error:
        return str(error.reason)
    scored = await driver.evaluate(job, None, lambda note: None)
    return str(scored.reason if scored.score is None else scored.score)


@pytest.mark.parametrize(
    ("rollout", "attempt_index", "expected"),
    [
        ("t000/0", 1, "0.5"),
        ("t000/0", 2, "1.0"),
        ("t000/2", 1, "setup_failed"),
        ("t001/2", 1, "sandbox_lost"),
        ("t002/1", 1, "0.25"),
        ("t003/2", 1, "evaluator_error"),
    ],
)
async def test_an_attempt_ends_as_it_did_elsewhere(rollout: str, attempt_index: int, expected: str) -> None:
    assert await end(f"event-1/os/{rollout}", attempt_index, seed=11) == expected


async def test_without_a_seed_all_is_well() -> None:
    assert {await end(f"b/os/t{number}/0", 1, seed=0) for number in range(64)} == {"1.0"}
