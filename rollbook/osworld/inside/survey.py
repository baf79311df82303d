"""Survey of the installed `desktop_env`: printed as JSON for `rollbook.osworld.capabilities`."""

import ast
import inspect
import json
import textwrap
from types import ModuleType
from typing import Any

from . import stand_ins


def survey() -> dict[str, Any]:
    """Names of metrics and getters, and per setup type which parameters it takes."""
    stand_ins.install()
    from desktop_env.controllers.setup import SetupController  # type: ignore[import-not-found]
    from desktop_env.evaluators import getters, metrics  # type: ignore[import-not-found]

    methods = inspect.getmembers(SetupController, inspect.isfunction)
    return {
        "metrics": _functions(metrics),
        "getters": [name.removeprefix("get_") for name in _functions(getters) if name.startswith("get_")],
        "setup": {
            name.removeprefix("_").removesuffix("_setup"): _parameters(method)
            for name, method in methods
            if name.startswith("_") and name.endswith("_setup")
        },
    }


def main() -> None:
    """Print the survey."""
    print(json.dumps(survey()))


def _functions(module: ModuleType) -> list[str]:
    return sorted(name for name, _ in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_"))


def _parameters(method: Any) -> dict[str, Any]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    return {
        "implemented": not _only_raises(method),
        "required": [p.name for p in named if p.default is inspect.Parameter.empty],
        "optional": [p.name for p in named if p.default is not inspect.Parameter.empty],
        "open": len(named) < len(parameters),
    }


def _only_raises(method: Any) -> bool:
    """Return whether the body is a docstring at most and `raise NotImplementedError`."""
    function = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    statements = [node for node in function.body if not isinstance(node, ast.Expr)]  # type: ignore[attr-defined]
    return bool(statements) and all(isinstance(node, ast.Raise) for node in statements)
