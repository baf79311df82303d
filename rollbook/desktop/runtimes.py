"""Action runtimes: transformations of an action's pyautogui code before it runs in the guest.

A runtime's id is part of the agent contract. A change of behaviour is a new id, never an edit here.
"""

import contextlib
import re
import warnings
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
_PRESS = re.compile(r"""pyautogui\.press\(["'](?:<|\\u003c)["']\)""")
_TYPEWRITE = re.compile(r"""pyautogui\.typewrite\((["'])(.*?)\1\)""")


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
    """OSWorld's repair of pyautogui's `<`, which types `>` on the usual keyboard; equal to OSWorld's in every case.

    It works on the text: `pyautogui.press('<')`, and `pyautogui.typewrite('…<…')` with one quoted argument on a line,
    also inside other text. Every other form keeps the bug. A repaired text is read with Python's escapes and written
    without them: characters beyond ASCII become others, and a quote or a line break in it is a syntax error.
    """
    return _TYPEWRITE.sub(_typed_by_keys, _PRESS.sub(_TYPE_LESS_THAN, action))


def _typed_by_keys(call: re.Match[str]) -> str:
    quote, text = call.groups()
    with contextlib.suppress(UnicodeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # an escape that Python does not know stays as it is
        text = text.encode().decode("unicode_escape")
    if "<" not in text:
        return call[0]
    typed = [f"pyautogui.typewrite({quote}{part}{quote})" if part else "" for part in text.split("<")]
    return "; ".join([step for part in typed for step in (_TYPE_LESS_THAN, part) if step][1:])


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
