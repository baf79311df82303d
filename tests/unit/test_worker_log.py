"""Log lines of a worker."""

import io
import logging

from temporalio.exceptions import ApplicationError

from models import names
from worker_main import refused_in_a_line


def logged(error: Exception) -> str:
    """Log lines of one failed activity."""
    out = io.StringIO()
    logger = logging.Logger("t")
    logger.addHandler(logging.StreamHandler(out))
    logger.addFilter(refused_in_a_line)
    try:
        raise error
    except Exception:
        told = {"temporal_activity": {"activity_type": "register_batch", "workflow_id": "b1"}}
        logger.warning("Completing activity as failed", exc_info=True, extra=told)
    return out.getvalue()


def test_wrong_input_is_one_line() -> None:
    refused = ApplicationError("task_set: 'nope' is not registered", type=names.INVALID_INPUT, non_retryable=True)
    assert logged(refused) == "register_batch (b1) refused its input: task_set: 'nope' is not registered\n"


def test_any_other_failure_keeps_its_traceback() -> None:
    assert "Traceback" in logged(ApplicationError("no disk", type="OSError"))
    assert "Traceback" in logged(ValueError("a bug"))
