"""Effects of calls of the `computer` tool on a real desktop: the events that a window receives."""

import json
from collections.abc import AsyncIterator
from typing import Any

import docker
import pytest

from rollbook.desktop.runtimes import runtime
from rollbook.policies.protocols.base import ReplyView
from rollbook.policies.protocols.registry import protocol
from tests.support.desktop import Desktop, desktops, eventually

LISTENER = """
import Xlib.X as X, Xlib.display, Xlib.XK as XK
d = Xlib.display.Display()
root = d.screen().root
mask = X.ButtonPressMask | X.ButtonReleaseMask | X.KeyPressMask | X.KeyReleaseMask
window = root.create_window(0, 0, 1920, 1080, 0, d.screen().root_depth, event_mask=mask, override_redirect=1)
window.map()
window.set_input_focus(X.RevertToParent, X.CurrentTime)
d.sync()
print("ready", flush=True)
names = {X.ButtonPress: "button", X.ButtonRelease: "button up", X.KeyPress: "key", X.KeyRelease: "key up"}
while True:
    e = d.next_event()
    if e.type in names:
        keyed = e.type in (X.KeyPress, X.KeyRelease)
        what = XK.keysym_to_string(d.keycode_to_keysym(e.detail, 0)) or e.detail if keyed else e.detail
        held = [name for name, bit in (("shift", X.ShiftMask), ("ctrl", X.ControlMask)) if e.state & bit]
        print(names[e.type], what, "" if keyed else (e.root_x, e.root_y), "+".join(held), flush=True)
"""


@pytest.fixture(scope="module")
async def desktop(docker_client: docker.DockerClient, desktop_image: str, deployment_id: str) -> AsyncIterator[Desktop]:
    """A desktop that reports its events; removed when the module is done."""
    async with desktops(docker_client, desktop_image, deployment_id) as start:
        started = await start()
        await started.output(f"cat > /tmp/listener.py <<'END'\n{LISTENER}\nEND")
        await started.output("setsid python3 /tmp/listener.py > /tmp/events 2>&1 < /dev/null & true")
        assert await eventually(lambda: started.output("grep ready /tmp/events")), await started.output(
            "cat /tmp/events"
        )
        yield started


CASES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"action": "left_click", "coordinate": [0.5, 0.5], "text": "ctrl+shift"},
        ["button 1 (960, 540) shift+ctrl", "button up 1 (960, 540) shift+ctrl"],
    ),
    ({"type": "click", "button": "wheel", "x": 0.25, "y": 0.5}, ["button 2 (480, 540) ", "button up 2 (480, 540) "]),
    (
        {"action": "scroll", "coordinate": [0.5, 0.5], "pixels": -200, "keys": ["ctrl"]},
        ["button 5 (960, 540) ctrl", "button up 5 (960, 540) ctrl"] * 2,
    ),
    (
        {"type": "scroll", "x": 0.5, "y": 0.5, "scroll_x": 100, "scroll_y": -100},
        ["button 4 (960, 540) ", "button up 4 (960, 540) ", "button 7 (960, 540) ", "button up 7 (960, 540) "],
    ),
    ({"action": "left_mouse_down", "coordinate": "[0.1, 0.1]"}, ["button 1 (192, 108) "]),
    ({"action": "left_mouse_up"}, ["button up 1 (192, 108) "]),
]


@pytest.mark.parametrize(("arguments", "events"), CASES)
async def test_mouse_events(desktop: Desktop, arguments: dict[str, Any], events: list[str]) -> None:
    """And nothing stays held afterwards: each case begins without a modifier."""
    call = {"function": {"name": "computer", "arguments": json.dumps(arguments)}}
    parsed = protocol("computer-tool-v1").parse(ReplyView("", None, [call]), (1920, 1080), (1920, 1080))
    before = await _mouse(desktop)
    for action in parsed.actions:
        reply = await desktop.http.post(
            "/execute", json={"command": ["python", "-c", runtime("canonical").code(action)]}
        )
        assert reply.json()["returncode"] == 0, reply.json()
    assert await eventually(lambda: _since(desktop, before, len(events))) == events


async def _since(desktop: Desktop, before: list[str], wanted: int) -> list[str]:
    """The newer events; none while there are fewer than wanted."""
    seen = (await _mouse(desktop))[len(before) :]
    return seen if len(seen) >= wanted else []


async def _mouse(desktop: Desktop) -> list[str]:
    return [line for line in (await desktop.output("cat /tmp/events")).splitlines() if line.startswith("button")]
