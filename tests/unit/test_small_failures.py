"""Failures of activities that are tried again keep their message, however long their chain of causes is."""

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from rollbook.temporal.plugin import DATA_CONVERTER

SERVER_LIMIT_BYTES = 4096


def _failure(error: BaseException) -> Failure:
    failure = Failure()
    DATA_CONVERTER.failure_converter.to_failure(error, DATA_CONVERTER.payload_converter, failure)
    return failure


def _chained(depth: int, words: str) -> BaseException:
    """An error as libraries raise it: layer upon layer, each with a stack."""

    def fall(levels: int) -> None:
        if levels == 0:
            raise ConnectionRefusedError(words)
        try:
            fall(levels - 1)
        except OSError as error:
            raise OSError(f"layer {levels}: {words}") from error

    try:
        fall(depth)
    except OSError as error:
        return error
    raise AssertionError("unreachable")


@pytest.mark.parametrize("depth", [0, 1, 5, 40])
@pytest.mark.parametrize("words", ["away", "w" * 900, "é" * 5000])
def test_the_server_keeps_it(depth: int, words: str) -> None:
    failure = _failure(_chained(depth, words))
    assert failure.ByteSize() <= SERVER_LIMIT_BYTES
    assert (f"layer {depth}: " if depth else words[:100]) in failure.message
    assert failure.application_failure_info.type in ("OSError", "ConnectionRefusedError")


def test_a_small_failure_keeps_its_causes() -> None:
    failure = _failure(_chained(1, "away"))
    assert failure.cause.message == "away"
    assert "fall" in failure.stack_trace


def test_where_it_was_raised_is_kept() -> None:
    assert "in fall" in _failure(_chained(40, "w" * 900)).stack_trace


def test_a_final_message_is_whole() -> None:
    """It goes into the history, which has room, and may be the difference of two contracts."""
    error = ApplicationError("d" * 4000, type="InvalidInput", non_retryable=True)
    assert _failure(error).message == "d" * 4000
