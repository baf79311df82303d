"""The life of a desktop: boot, limits, restart, death, live view; each on a desktop of its own."""

import asyncio
import json
import struct
import uuid
from collections.abc import AsyncIterator

import aiohttp
import docker
import httpx
import pytest

from rollbook.desktop.client import GuestClient
from rollbook.desktop.http_driver import claim_phase
from rollbook.desktop.journal import perform
from rollbook.desktop.runtimes import CANONICAL
from rollbook.guest.http import Endpoint
from rollbook.osworld.environment import ensure_environment
from tests.support.desktop import Desktop, StartDesktop, desktops, eventually


@pytest.fixture(scope="module")
async def start_desktop(
    docker_client: docker.DockerClient, desktop_image: str, deployment_id: str
) -> AsyncIterator[StartDesktop]:
    """Starts desktops that are removed when the module is done."""
    async with desktops(docker_client, desktop_image, deployment_id) as start:
        yield start


async def test_first_screenshot_shows_the_whole_desktop(start_desktop: StartDesktop) -> None:
    first = await (await start_desktop()).screenshot()
    assert first.size == (1920, 1080)
    colours = first.getcolors(maxcolors=first.width * first.height)
    assert colours is not None
    assert len(colours) > 100
    panel, background = first.crop((0, 0, 200, 32)), first.crop((300, 200, 800, 900))
    assert len(panel.getcolors(10_000) or []) > 20, "the panel shows no launchers"
    assert len(background.getcolors(500_000) or []) > 50, "the background is not painted"


async def test_a_command_at_its_limit_is_killed_with_all_it_started(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S": "1"})
    command = {"command": "sleep 55.5 & sleep 55.5", "shell": True}
    reply = await desktop.http.post("/execute", json=command)
    assert reply.status_code == 500
    assert "1 seconds" in reply.json()["message"]
    assert await desktop.output("pgrep -fx 'sleep 55.5' | wc -l") == "0\n"
    script = {"script": "echo begun; sleep 30", "timeout": 0.5}
    assert (await desktop.http.post("/run_bash_script", json=script)).json()["returncode"] == -1


async def test_an_action_past_the_servers_limit_is_a_timeout(start_desktop: StartDesktop) -> None:
    """Its own watchdog is later here, or does not run while C code holds the interpreter."""
    desktop = await start_desktop(environment={"ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S": "4"})
    async with GuestClient(Endpoint(str(desktop.http.base_url))) as client:
        await claim_phase(client, "prepare", "setup")
        for _ in range(2):
            result = await perform(client, op_id="op", action="time.sleep(200)", runtime=CANONICAL)
            assert (result.status, "guest server" in str(result.error)) == ("timeout", True)


async def test_a_command_without_memory_is_told_from_one_that_kills_itself(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(mem_limit="600m", memswap_limit="600m")
    eater = "python3 -c 'x = b\"x\" * 2_000_000_000'"
    for command, code in ((["sh", "-c", f"exec {eater}"], -9), (["sh", "-c", f"{eater}; exit $?"], 137)):
        answer = await desktop.execute(command)
        assert (answer["returncode"], answer["out_of_memory"]) == (code, True)
    answer = await desktop.execute(["sh", "-c", "kill -9 $$"])
    assert (answer["returncode"], answer["out_of_memory"]) == (-9, False)
    script = (await desktop.http.post("/run_bash_script", json={"script": eater})).json()
    assert (script["returncode"], script["out_of_memory"]) == (137, True)


async def test_an_application_that_does_not_answer_is_an_error(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop()
    await desktop.execute(["xdotool", "key", "ctrl+alt+t"])
    await desktop.execute("(setsid gedit > /dev/null 2>&1 &)")

    async def tree() -> str:
        reply = await desktop.http.get("/accessibility")
        return str(reply.json()["AT"]) if reply.status_code == 200 else ""

    async def both_shown() -> bool:
        return 'name="gedit"' in (shown := await tree()) and "gnome-terminal" in shown

    assert await eventually(both_shown, 40)
    await desktop.execute(["wmctrl", "-a", "Terminal"])
    assert await eventually(desktop.terminal)
    await desktop.execute("pkill -STOP -x gedit")
    reply = await desktop.http.get("/accessibility")
    assert (reply.status_code, "does not answer" in reply.json()["message"]) == (500, True), reply.text[:500]
    assert await desktop.terminal(), "another application that is stopped does not concern the terminal"
    await desktop.execute("pkill -9 -x gedit")
    assert 'name="gedit"' not in await tree()
    await desktop.execute("pkill -STOP -f gnome-[t]erminal-server")
    assert (await desktop.http.get("/terminal")).status_code == 500
    await desktop.execute("pkill -9 -f gnome-[t]erminal-server")
    assert await desktop.terminal() == ""


async def test_a_tree_that_cannot_be_read_in_time_is_an_error(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"ROLLBOOK_GUEST_ACCESSIBILITY_TIMEOUT_S": "0.01"})
    reply = await desktop.http.get("/accessibility")
    assert (reply.status_code, reply.json()["status"]) == (500, "error")


async def test_nonce_names_the_boot(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop()
    identity = (await desktop.http.get("/nonce")).json()
    assert identity["server"] == "rollbook-guest"
    assert (await desktop.output("cat /run/rollbook/nonce")).strip() == identity["nonce"]
    assert (await desktop.execute("echo forged > /run/rollbook/nonce"))["returncode"] != 0
    await desktop.output("echo kept > ~/marker")
    await asyncio.to_thread(desktop.container.restart, timeout=5)
    await desktop.connect()
    after = (await desktop.http.get("/nonce")).json()["nonce"]
    assert len(after) == len(identity["nonce"]) == 32
    assert after != identity["nonce"]
    assert await desktop.output("cat ~/marker") == "kept\n"


async def test_killing_the_session_leaves_the_same_machine(start_desktop: StartDesktop) -> None:
    """An agent that kills everything it may kill gets a fresh session, not a lost sandbox and another attempt."""
    desktop = await start_desktop()
    before = (await desktop.http.get("/nonce")).json()["nonce"]
    with pytest.raises(httpx.TransportError):
        await desktop.http.post("/execute", json={"command": "kill -9 -1", "shell": True})
    await desktop.connect()
    assert (await desktop.http.get("/nonce")).json()["nonce"] == before

    async def works() -> bool:
        await desktop.execute(["xdotool", "key", "ctrl+alt+t"])
        return bool(await eventually(desktop.terminal, 5))

    assert await eventually(works, 40)
    assert await desktop.output("ps -eo stat= | grep -c Z; true") == "0\n"


async def test_a_lost_display_ends_the_container(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop()
    await asyncio.to_thread(desktop.container.exec_run, ["pkill", "-9", "Xvfb"])
    ended = await asyncio.to_thread(desktop.container.wait, timeout=30)
    assert ended["StatusCode"] == 1


class LiveView:
    """A VNC client (RFB 3.8) over noVNC's WebSocket, as far as a test needs it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._unread = b""

    async def read(self, count: int) -> bytes:
        while len(self._unread) < count:
            self._unread += await asyncio.wait_for(self._socket.receive_bytes(), 20)
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    async def security_types(self) -> list[int]:
        """1 is "no password", 2 is "VNC password"."""
        await self._socket.send_bytes(await self.read(12))
        return list(await self.read((await self.read(1))[0]))

    async def enter_without_password(self) -> tuple[int, int]:
        """The size of the screen, once the server has let us in."""
        await self._socket.send_bytes(b"\x01")
        assert await self.read(4) == bytes(4)
        await self._socket.send_bytes(b"\x01")
        width, height = struct.unpack(">HH", await self.read(4))
        await self.read(16)
        await self.read(struct.unpack(">I", await self.read(4))[0])
        return width, height

    async def click_and_type(self, x: int, y: int) -> None:
        """Pointer and key events, then a picture: when it comes, the events before it have been handled."""
        for buttons in (0, 1, 0):
            await self._socket.send_bytes(struct.pack(">BBHH", 5, buttons, x, y))
        await self._socket.send_bytes(struct.pack(">BBHI", 4, 1, 0, ord("x")))
        await self._socket.send_bytes(struct.pack(">BBHHHH", 3, 0, 0, 0, 16, 16))
        assert (await self.read(1))[0] == 0


async def live_view(desktop: Desktop, session: aiohttp.ClientSession) -> LiveView:
    url = f"http://127.0.0.1:{desktop.port(8006)}"

    async def connected() -> LiveView | None:
        try:
            socket = await session.ws_connect(f"{url}/websockify", protocols=["binary"])
            view = LiveView(socket)
            view._unread = await socket.receive_bytes()
        except (aiohttp.ClientError, TypeError):
            return None  # bridge or VNC server are not up yet
        return view

    view: LiveView | None = await eventually(connected)
    assert view is not None
    async with session.get(f"{url}/vnc.html") as page:
        assert "noVNC" in await page.text()
    return view


async def test_live_view_shows_but_takes_no_input(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(init=True)
    await desktop.execute(["xdotool", "mousemove", "300", "300"])
    async with aiohttp.ClientSession() as session:
        view = await live_view(desktop, session)
        assert await view.security_types() == [1]
        assert await view.enter_without_password() == (1920, 1080)
        await view.click_and_type(900, 700)
    assert (await desktop.http.get("/cursor_position")).json() == [300, 300]


async def test_live_view_wants_the_password_that_the_agent_cannot_read(start_desktop: StartDesktop) -> None:
    password = "look-" + uuid.uuid4().hex[:3]
    desktop = await start_desktop(environment={"VNC_PASSWORD": password})
    async with aiohttp.ClientSession() as session:
        assert await (await live_view(desktop, session)).security_types() == [2]
    seen = await desktop.output("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true")
    assert "DISPLAY=:0" in seen
    assert password not in seen
    assert (await desktop.execute("cat /run/rollbook/vnc-passwords"))["returncode"] != 0


async def test_live_view_can_be_switched_off(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"VNC": "off"})
    assert await desktop.output("pgrep -c 'x11vnc|websockify'; true") == "0\n"


async def test_the_screen_has_the_size_that_was_asked_for(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"SCREEN_WIDTH": "1280", "SCREEN_HEIGHT": "800"})
    assert (await desktop.http.post("/screen_size")).json() == {"width": 1280, "height": 800}
    assert (await desktop.screenshot()).size == (1280, 800)


CLIENT = """
import json, sys
from desktop_env.controllers.python import PythonController
c = PythonController("127.0.0.1", int(sys.argv[1]))
c.retry_times = 1
c.execute_action({"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "alt", "t"]}})
import time; time.sleep(3)
c.execute_action({"action_type": "TYPING", "parameters": {"text": "stty size"}})
c.execute_action({"action_type": "PRESS", "parameters": {"key": "enter"}})
time.sleep(1)
facts = {
    "png": c.get_screenshot()[:8].hex(),
    "tree": c.get_accessibility_tree()[:14],
    "terminal": c.get_terminal_output(),
    "file": c.get_file("/etc/hostname").decode(),
    "platform": c.get_vm_platform(),
    "screen": c.get_vm_screen_size(),
    "window": c.get_vm_window_size("Gnome-terminal"),
    "wallpaper": c.get_vm_wallpaper()[:8].hex(),
    "desktop": c.get_vm_desktop_path(),
    "directory": c.get_vm_directory_tree("/home/user/Desktop"),
    "python": c.run_python_script("print(6*7)")["output"],
    "python_error": c.run_python_script("1/0")["status"],
    "bash": c.run_bash_script("echo $((6*7)); false")["returncode"],
}
print(json.dumps(facts))
"""


async def test_the_stock_client_gets_everything_it_asks_for(start_desktop: StartDesktop) -> None:
    """desktop_env's own PythonController, unmodified, from the evaluator's environment."""
    desktop = await start_desktop()
    env = await ensure_environment(log=lambda _: None)
    client = await asyncio.create_subprocess_exec(
        str(env.python), "-c", CLIENT, desktop.port(5000), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(client.communicate(), 120)
    facts = json.loads(printed.decode().splitlines()[-1])
    png = b"\x89PNG\r\n\x1a\n".hex()
    assert facts["png"] == facts["wallpaper"] == png
    assert facts["tree"] == "<desktop-frame"
    assert "24 80" in facts["terminal"]
    assert facts["file"].strip() == desktop.container.short_id
    assert facts["platform"] == "Linux"
    assert facts["screen"] == {"width": 1920, "height": 1080}
    assert facts["window"]["width"] > 300
    assert facts["desktop"] == "/home/user/Desktop"
    assert facts["directory"] == {"type": "directory", "name": "Desktop", "children": []}
    assert (facts["python"], facts["python_error"], facts["bash"]) == ("42\n", "error", 1)


async def test_a_full_disk_makes_no_empty_answers(start_desktop: StartDesktop) -> None:
    """An evaluator would score an empty output, so what was printed must come all the same, or an error."""
    desktop = await start_desktop(tmpfs={"/tmp": "size=256k,mode=1777"})
    await desktop.execute("head -c 1M /dev/zero > /tmp/fill; echo hello > ~/a.txt")
    assert (await desktop.execute("echo x > /tmp/y"))["returncode"] != 0, "the disk is not full"
    assert await desktop.output("cat ~/a.txt") == "hello\n"
    assert len(await desktop.output("head -c 3000000 /dev/zero")) == 3_000_000
    assert len(await desktop.output("head -c 33M /dev/zero")) == 32 * 2**20
    script = await desktop.http.post("/run_bash_script", json={"script": "echo hello"})
    assert script.json()["output"] == "hello\n"  # the script itself lies where there is room
    for size in (200_000, 600_000):
        form = {"file_path": "/tmp/new"}
        stored = await desktop.http.post("/setup/upload", data=form, files={"file_data": ("x", b"x" * size)})
        assert (stored.status_code, stored.json()["status"]) == (500, "error"), stored.text
