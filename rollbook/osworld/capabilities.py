"""Capabilities of the canonical evaluator, known without its environment: tasks are checked at registration.

The table `capabilities.json` is a survey of `desktop_env` 1.0.2; `python -m rollbook.osworld.capabilities` takes it
again and a test compares. The rules are those of `DesktopEnv._set_evaluator_info`.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.config.child_environment import child_environment
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment
from rollbook.osworld.isolation import INSIDE
from rollbook.redaction import redact_tail

TABLE = Path(__file__).with_name("capabilities.json")

ABSENT_PACKAGES = {
    "metric": {"compare_image_text": "easyocr", "compare_audios": "librosa"},
    "getter": {"googledrive_file": "pydrive"},
    "setup": {"googledrive": "pydrive"},
}
"""Names that need a package which the lean environment leaves out: such a task ends as an error, never as a score."""


@lru_cache(maxsize=1)
def capabilities() -> dict[str, Any]:
    """The table: `metrics`, `getters`, `setup` (type → parameters)."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def validate_task(task: dict[str, Any]) -> list[str]:
    """Everything that keeps the evaluator from setting up or scoring this task; each line names the field.

    Empty: every name it uses exists. Whether the desktop has what the task needs is another question.
    """
    return list(_problems(task))


def _problems(task: dict[str, Any]) -> Iterator[str]:
    for key in ("id", "instruction"):
        if not isinstance(task.get(key), str) or not task[key].strip():
            yield f"{key}: must be a non-empty string"
    yield from _steps("config", task.get("config", []))
    evaluator = task.get("evaluator")
    if not isinstance(evaluator, dict):
        yield "evaluator: must be an object"
        return
    yield from _steps("evaluator.postconfig", evaluator.get("postconfig", []))
    yield from _metrics(evaluator)


def _steps(field: str, steps: Any) -> Iterator[str]:
    if not isinstance(steps, list):
        yield f"{field}: must be a list"
        return
    for index, step in enumerate(steps):
        yield from _step(f"{field}[{index}]", step)


def _step(field: str, step: Any) -> Iterator[str]:
    if not isinstance(step, dict) or not isinstance(step.get("parameters"), dict):
        yield f"{field}: must be an object with type and parameters"
        return
    kind = step.get("type")
    known = capabilities()["setup"].get(kind) if isinstance(kind, str) else None
    if known is None or not known["implemented"]:
        yield f"{field}.type: {_unknown('setup type', kind)}"
        return
    if kind in ABSENT_PACKAGES["setup"]:
        yield f"{field}.type: {_absent('setup', kind)}"
    taken = {*known["required"], *known["optional"]}
    if kind == "command":  # passes everything on to `execute`
        taken |= set(capabilities()["setup"]["execute"]["optional"])
    for name in known["required"]:
        if name not in step["parameters"]:
            yield f"{field}.parameters.{name}: is missing"
    for name in step["parameters"]:
        if name not in taken and (not known["open"] or kind == "command"):
            yield f"{field}.parameters.{name}: setup type {kind} takes {', '.join(sorted(taken))} only"


def _metrics(evaluator: dict[str, Any]) -> Iterator[str]:
    function = evaluator.get("func")
    names = function if isinstance(function, list) else [function]
    if not names:
        yield "evaluator.func: must name at least one metric"
    for name in names:
        if name not in capabilities()["metrics"]:
            yield f"evaluator.func: {_unknown('metric', name)}"
        elif name in ABSENT_PACKAGES["metric"]:
            yield f"evaluator.func: {_absent('metric', name)}"
    if isinstance(function, list) and "infeasible" in function:
        yield "evaluator.func: infeasible must stand alone, not in a list"
    if evaluator.get("conj", "and") not in ("and", "or"):
        yield f"evaluator.conj: {evaluator['conj']!r} is neither and nor or"
    if function == "infeasible":
        return
    if not evaluator.get("result"):
        yield "evaluator.result: is missing"
    for side in ("result", "expected"):
        yield from _sources(f"evaluator.{side}", evaluator.get(side), names if isinstance(function, list) else None)
    options = evaluator.get("options")
    if isinstance(function, list) and isinstance(options, list) and len(options) != len(names):
        yield f"evaluator.options: has {len(options)} entries for {len(names)} metrics"


def _sources(field: str, sources: Any, metrics: list[Any] | None) -> Iterator[str]:
    if not sources:
        return
    if isinstance(sources, list) != (metrics is not None):
        yield f"{field}: must be a list where evaluator.func is one, and one object where it is one name"
        return
    listed = sources if isinstance(sources, list) else [sources]
    if metrics is not None and len(listed) != len(metrics):
        yield f"{field}: has {len(listed)} entries for {len(metrics)} metrics"
    for index, source in enumerate(listed):
        where = f"{field}[{index}]" if metrics is not None else field
        kind = source.get("type") if isinstance(source, dict) else None
        if kind not in capabilities()["getters"]:
            yield f"{where}.type: {_unknown('getter', kind)}"
        elif kind in ABSENT_PACKAGES["getter"]:
            yield f"{where}.type: {_absent('getter', kind)}"


def _unknown(what: str, name: Any) -> str:
    return f"desktop_env 1.0.2 has no {what} {name!r}"


def _absent(what: str, name: Any) -> str:
    return f"{what} {name} needs {ABSENT_PACKAGES[what][name]}, which the evaluator's lean environment leaves out"


async def survey(env: EvaluatorEnv) -> dict[str, Any]:
    """Ask the environment itself. Raises RuntimeError with its output when it fails."""
    process = await asyncio.create_subprocess_exec(
        *(str(env.python), "-I", "-B", str(INSIDE), "survey"),
        env=child_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(redact_tail(errors, 2000))
    table: dict[str, Any] = json.loads(output.decode().splitlines()[-1])
    return table


def main() -> None:
    """Take the survey and write the table."""
    table = asyncio.run(_survey_installed())
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(table['metrics'])} metrics, {len(table['getters'])} getters, {len(table['setup'])} setup types")


async def _survey_installed() -> dict[str, Any]:
    return await survey(await ensure_environment())


if __name__ == "__main__":
    main()
