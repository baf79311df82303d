"""Action runtimes: transformations of an action's pyautogui code before it runs in the guest.

A runtime's id is part of the agent contract. A change of behaviour is a new id, never an edit here.
"""

import ast
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from rollbook.desktop.client import GuestClient
from rollbook.errors import InvalidInput, SandboxLost
from rollbook.guest.http import parse_guest_json
from rollbook.redaction import redact_head, redact_tail

RuntimeId = Literal["canonical", "exact-input-2"]

PREAMBLE = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
"""OSWorld's own prefix. It joins by `;`, so an action that begins with `for` or `if` is a syntax
error there, and must be one here."""

_GUEST = files("rollbook.desktop") / "inside"
_TYPE_LESS_THAN = 'pyautogui.hotkey("shift", ",")'


@dataclass(frozen=True)
class ActionRuntime:
    """A way to run the actions of a contract."""

    id: RuntimeId
    interpreter: str = "python"
    """The guest's command; OSWorld guests all have `python`."""

    def code(self, action: str) -> str:
        """The program that performs `action`, a piece of pyautogui code."""
        if self.id == "canonical":
            return PREAMBLE + repair_less_than(action)
        return f"{(_GUEST / 'exact_input.py').read_text()}\n{PREAMBLE}{action}"


CANONICAL = ActionRuntime("canonical")
EXACT_INPUT = ActionRuntime("exact-input-2")


def runtime(name: str) -> ActionRuntime:
    """The runtime with this id. Raises InvalidInput."""
    for known in (CANONICAL, EXACT_INPUT):
        if known.id == name:
            return known
    raise InvalidInput(f"action_runtime: {name!r} is unknown; use canonical or exact-input-2")


def repair_less_than(action: str) -> str:
    """OSWorld's repair of pyautogui's `<`, which types `>` on the usual keyboard.

    Only statements `pyautogui.press('<')` and `pyautogui.typewrite('…<…')` with that one literal argument are repaired,
    each `<` becoming Shift and comma. Every other form (`write`, variables, further arguments, key lists) keeps the
    bug, as in OSWorld. Code that does not parse is left as it is.
    """
    try:
        tree = ast.parse(action)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return action
    calls = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    repairs = [(call, repaired) for call in calls if (repaired := _repaired(call)) is not None]
    lines = action.encode().splitlines(keepends=True)
    for call, repaired in sorted(repairs, key=lambda pair: (pair[0].lineno, pair[0].col_offset), reverse=True):
        lines = _replace(lines, call, repaired)
    return b"".join(lines).decode()


def _repaired(call: ast.Call) -> str | None:
    function = call.func
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
        return None
    if function.value.id != "pyautogui" or len(call.args) != 1 or call.keywords:
        return None
    text = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    if not isinstance(text, str) or "<" not in text:
        return None
    if function.attr == "press":
        return _TYPE_LESS_THAN if text == "<" else None
    if function.attr != "typewrite":
        return None
    typed = [f"pyautogui.typewrite({part!r})" if part else "" for part in text.split("<")]
    steps = [step for part in typed for step in (_TYPE_LESS_THAN, part) if step][1:]
    return "; ".join(steps)


def _replace(lines: list[bytes], call: ast.Call, text: str) -> list[bytes]:
    """The source with the call's text replaced; positions of the syntax tree count bytes of UTF-8."""
    assert call.end_lineno is not None
    first, last = call.lineno - 1, call.end_lineno - 1
    new = lines[first][: call.col_offset] + text.encode() + lines[last][call.end_col_offset :]
    return [*lines[:first], new, *lines[last + 1 :]]


_PROBE = """
import json
missing = []
try:
    import pyautogui
    from pyautogui import platformModule
except BaseException as error:
    missing.append("python module pyautogui: %s: %s" % (type(error).__name__, error))
else:
    if EXACT:
        try:
            display = platformModule._display
            first = display.display.info.min_keycode
            rows = display.get_keyboard_mapping(first, display.display.info.max_keycode - first + 1)
            spare = sum(not any(row) for row in rows)
            if spare < 8:
                missing.append("unused keycodes of the X keyboard: %d, wanted 8 or more" % spare)
        except BaseException as error:
            missing.append("an X keyboard that can be read: %s: %s" % (type(error).__name__, error))
print("\\n@@rollbook-probe@@ " + json.dumps(missing))
"""


_MARK = "@@rollbook-probe@@ "

_SHELL = """
command -v "$0" >/dev/null && exec "$0" -c "$1"
printf '\\n%s[null]\\n' "$2"
"""


async def probe_runtime(client: GuestClient, runtime: ActionRuntime) -> list[str]:
    """Return what the guest lacks for this runtime, one text each.

    Only a verdict that the guest printed counts. Raises SandboxLost when there is none: a desktop that does not run the
    probe proves nothing about its image.
    """
    program = f"EXACT = {runtime.id == 'exact-input-2'}\n{_PROBE}"
    answer = await client.execute(["sh", "-c", _SHELL, runtime.interpreter, program, _MARK])
    for line in reversed(answer.output.splitlines()):
        missing = parse_guest_json(line[len(_MARK) :]) if line.startswith(_MARK) else None
        if missing == [None]:
            return [f"command {runtime.interpreter!r} in the guest"]
        if isinstance(missing, list) and all(isinstance(word, str) for word in missing):
            return [redact_head(str(word), 500) for word in missing[:20]]
    why = redact_tail(answer.error or answer.output, 500) or "no output"
    raise SandboxLost(f"the desktop did not run the probe of action runtime {runtime.id}: {why}")
