"""The checks behind a score in words: each metric with what it compared and what it returned.

Only watches: OSWorld's getters and metrics are called as before, with the same arguments.
"""

import functools
import reprlib
from collections.abc import Callable
from typing import Any

TEXT = 160
"""Characters of a compared value that are shown."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = TEXT
_short.maxlist = _short.maxdict = 8


class Checks:
    """Watches the metrics and result getters of a `DesktopEnv`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._lines: list[str] = []
        for name, watch in (("metric", self._metric), ("result_getter", self._getter)):
            known = getattr(env, name, None)
            if isinstance(known, list):
                setattr(env, name, [watch(function) for function in known])
            elif callable(known):
                setattr(env, name, watch(known))

    def words(self) -> str:
        """The checks in their order; why there was none where the terminal action decided."""
        action = self._env.action_history[-1] if self._env.action_history else None
        if self._env.evaluator["func"] == "infeasible":
            return f"an infeasible task: FAIL is the answer, the last action was {action}"
        if action == "FAIL":
            return "a feasible task, and the last action was FAIL"
        return "; ".join(self._lines)

    def _metric(self, metric: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(metric)
        def watched(*compared: Any, **options: Any) -> Any:
            value = metric(*compared, **options)
            words = [
                f"{name} {self._shown(state)}" for name, state in zip(("result", "expected"), compared, strict=False)
            ]
            self._lines.append(f"{_name(metric)} = {self._shown(value)} ({', '.join(words)})")
            return value

        return watched

    def _getter(self, getter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getter)
        def watched(*arguments: Any) -> Any:
            try:
                return getter(*arguments)
            except FileNotFoundError as error:
                self._lines.append(f"{_name(getter)}: no file {self._shown(error.filename)}")
                raise

        return watched

    def _shown(self, value: Any) -> str:
        """The value without the directory of the evaluation, whose name differs each time."""
        return _short.repr(value).replace(f"{self._env.cache_dir}/", "")


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
