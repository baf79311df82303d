"""Control requests of a batch: by signal or update, with or without an argument."""

from typing import Any, Literal, cast, get_args

from pydantic import ValidationError

from models import names
from models.base import Input
from models.batch import ConcurrencyInput, Control, PauseInput
from models.explain import explain

Verb = Literal["pause", "resume", "stop", "set_concurrency"]


class ReasonInput(Input):
    """Optional argument of `resume` and `stop`."""

    reason: str = ""


def read_control(batch_id: str, verb: str, options: Any) -> Control:
    """Read the change that a signal or update requests; raises ValueError that names the field."""
    if verb not in get_args(Verb):
        raise ValueError(f"verb: must be one of {', '.join(get_args(Verb))} (given: {verb!r})")
    chosen = cast(Verb, verb)
    try:
        if verb == names.SET_CONCURRENCY:
            fields = options if isinstance(options, dict) else {"concurrency": options}
            concurrency = ConcurrencyInput.model_validate(fields).concurrency
            return Control(batch_id=batch_id, verb=chosen, concurrency=concurrency)
        if verb == names.PAUSE:
            pause = PauseInput.model_validate(_object(options))
            return Control(batch_id=batch_id, verb=chosen, freeze=pause.freeze, reason=pause.reason)
        other = ReasonInput.model_validate(_object(options))
        return Control(batch_id=batch_id, verb=chosen, reason=other.reason)
    except ValidationError as error:
        raise ValueError(explain(error)) from error


def _object(options: Any) -> Any:
    if options is None:
        return {}
    return {"reason": options} if isinstance(options, str) else options
