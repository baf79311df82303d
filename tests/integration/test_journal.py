"""The journal and both action runtimes on the real desktop: real pyautogui, real windows, a network that breaks."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import docker
import pytest

from rollbook.desktop.client import GuestClient, GuestReplaced
from rollbook.desktop.http_driver import claim_phase
from rollbook.desktop.journal import ActionResult, Patience, perform, read_journal
from rollbook.desktop.observe import observe
from rollbook.desktop.runtimes import CANONICAL, EXACT_INPUT, ActionRuntime, probe_runtime
from rollbook.errors import SandboxLost
from rollbook.guest.http import GUEST_PORT, Endpoint, read_nonce
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import SandboxSpec

TEXT = "a<b>c \"q\" 'x' é É ñ 中文 🙂 €ß {}|~`^ Привет Ωλ ½ \\ %$#@!"
MANY = "".join(chr(0x4E00 + number) for number in range(120))
"""More different characters than a keyboard has unused keys."""


@dataclass
class DesktopRef:
    """A desktop as one test sees it: op ids and traces of its own."""

    container_id: str
    endpoint: Endpoint
    client: GuestClient
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def marks_file(self) -> str:
        return f"/tmp/marks-{self.name}"

    @property
    def mark(self) -> str:
        """An action that leaves one line per execution."""
        return f"open({self.marks_file!r}, 'a').write('acted\\n')"

    def op(self, op_id: str) -> str:
        return f"{self.name}-{op_id}"

    async def act(
        self, op_id: str, action: str, runtime: ActionRuntime = CANONICAL, timeout_s: float = 60.0
    ) -> ActionResult:
        op_id = self.op(op_id)
        return await perform(self.client, op_id=op_id, action=action, runtime=runtime, timeout_s=timeout_s)

    async def shell(self, command: str) -> str:
        answer = await self.client.execute(["bash", "-c", command])
        assert answer.returncode == 0, answer.error
        return answer.output

    async def marks(self) -> int:
        return int(await self.shell(f"touch {self.marks_file}; wc -l < {self.marks_file}"))

    async def until(self, command: str) -> None:
        """Until a command succeeds in the guest."""
        async with asyncio.timeout(60):
            while (await self.client.execute(["bash", "-c", command])).returncode != 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def terminal(self) -> None:
        """A fresh terminal in front."""
        await self.shell("pkill -f gnome-[t]erminal-server || true")
        await self.until("! wmctrl -l | grep -qi terminal")
        await self.act("terminal", "pyautogui.hotkey('ctrl', 'alt', 't')")
        await self.until("wmctrl -l | grep -qi terminal")
        await self.act("terminal-settles", "time.sleep(1.5)")


@asynccontextmanager
async def new_desk(deployment_id: str, image: str, rollout: str) -> AsyncIterator[DesktopRef]:
    provider = DockerProvider(deployment_id, max_desktops=8, quiet_s=0.0)
    spec = SandboxSpec(
        deployment=deployment_id, rollout=rollout, attempt=1, execution="e", image=image, vnc_port=provider.vnc_port
    )
    handle = await provider.create(spec)
    endpoint = await provider.endpoint(handle.sandbox_id, GUEST_PORT)
    async with GuestClient(endpoint) as client:
        await claim_phase(client, "prepare", "setup")
        yield DesktopRef(handle.sandbox_id, endpoint, client)
    await provider.stop_key(spec.key)
    await provider.remove_networks()
    await provider.close()


@pytest.fixture(scope="module")
async def shared_desk(
    docker_client: docker.DockerClient, deployment_id: str, desktop_image: str
) -> AsyncIterator[DesktopRef]:
    """One desktop for the tests that leave it usable."""
    async with new_desk(deployment_id, desktop_image, "journal-shared") as desktop:
        yield desktop


@pytest.fixture
def desktop(shared_desk: DesktopRef) -> DesktopRef:
    return replace(shared_desk, name=uuid.uuid4().hex[:8])


@pytest.fixture
async def own_desk(
    docker_client: docker.DockerClient, deployment_id: str, desktop_image: str
) -> AsyncIterator[DesktopRef]:
    """A desktop that the test may destroy."""
    async with new_desk(deployment_id, desktop_image, "journal-own") as desktop:
        yield desktop


@dataclass
class LossyProxy:
    """A TCP proxy on loopback that delivers requests and cuts the connection before the first byte of the answer."""

    target: str
    losses: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return Endpoint(f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.removeprefix("http://").split(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        upward = asyncio.create_task(self._copy(reader, up_writer))
        self._tasks.add(upward)
        upward.add_done_callback(self._tasks.discard)
        answer = await up_reader.read(65536)
        if self.losses > 0:
            self.losses -= 1
            writer.transport.abort()
        else:
            while answer:
                writer.write(answer)
                answer = await up_reader.read(65536)
        writer.close()
        up_writer.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


async def test_an_action_moves_the_real_mouse_once(desktop: DesktopRef) -> None:
    await desktop.act("start", "pyautogui.moveTo(100, 100)")
    move = "pyautogui.moveRel(50, 30)"
    first = await desktop.act("a1-s001-0", move)
    again = await desktop.act("a1-s001-0", move)
    assert (first.status, first.repeated, again.status, again.repeated) == ("ok", False, "ok", True)
    where = (await desktop.client.execute(["python", "-c", "import pyautogui; print(*pyautogui.position())"])).output
    assert where.split()[-2:] == ["150", "130"]


async def test_lost_replies_on_a_real_connection(desktop: DesktopRef) -> None:
    proxy = LossyProxy(desktop.endpoint.url)
    async with GuestClient(await proxy.start()) as client:
        for number in range(3):
            proxy.losses = number + 1
            result = await perform(
                client, op_id=desktop.op(f"op-{number}"), action=desktop.mark, runtime=CANONICAL, timeout_s=60.0
            )
            assert result.status == "ok"
    await proxy.stop()
    assert await desktop.marks() == 3
    journal = {entry.op_id: entry.executions for entry in await read_journal(desktop.client)}
    assert [journal[desktop.op(f"op-{number}")] for number in range(3)] == [1, 1, 1]


async def test_concurrent_deliveries_to_a_real_guest(desktop: DesktopRef) -> None:
    action = f"time.sleep(1); {desktop.mark}"
    results = await asyncio.gather(*(desktop.act("op", action) for _ in range(4)))
    assert await desktop.marks() == 1
    assert [result.status for result in results] == ["ok"] * 4
    assert sum(not result.repeated for result in results) == 1


async def test_a_killed_action_stays_in_doubt(desktop: DesktopRef) -> None:
    action = f"{desktop.mark}; time.sleep(50)"
    waiting = asyncio.create_task(desktop.act("op", action))
    await desktop.until(f"grep -q acted {desktop.marks_file}")
    await desktop.shell("pkill -9 -f 'rollbook-[j]ournal'")
    assert (await waiting).status == "in_doubt"
    assert (await desktop.act("op", action)).status == "in_doubt"
    assert await desktop.marks() == 1


async def test_an_action_longer_than_its_time(desktop: DesktopRef) -> None:
    action = f"{desktop.mark}; time.sleep(50); {desktop.mark}"
    result = await desktop.act("op", action, timeout_s=1.0)
    assert result.status == "timeout"
    assert "sleep" not in await desktop.shell("ps -C python,python3 -o args= | grep 'rollbook-[j]ournal' || true")
    assert await desktop.marks() == 1


REMOVE_ALL = (
    "import subprocess; subprocess.run('rm -rf /tmp/* /tmp/.[!.]* /var/tmp/* /var/tmp/.[!.]* "
    "/run/rollbook/records /run/rollbook/records.socket', shell=True)"
)


async def test_an_agent_that_removes_all_its_files_does_not_act_twice(
    own_desk: DesktopRef, docker_client: docker.DockerClient
) -> None:
    """It empties /tmp, the journal with it, then the worker is killed: the next try must not begin the action again."""
    desktop = own_desk
    acted = "open('/home/user/acted', 'a').write('x')"
    count = "wc -c < /home/user/acted"
    done = await desktop.act("done", f"{acted}; {REMOVE_ALL}")
    assert (done.status, done.repeated) == ("ok", False)
    killed = f"{acted}; {REMOVE_ALL}; import os; os.kill(os.getpid(), 9)"
    assert (await desktop.act("killed", killed)).status == "in_doubt"
    again = await desktop.act("done", f"{acted}; {REMOVE_ALL}")
    assert (again.status, again.repeated) == ("ok", True)
    assert (await desktop.act("killed", killed)).status == "in_doubt"
    assert (await claim_phase(desktop.client, "prepare", "another try")).state == "interrupted"
    assert (await desktop.shell(count)).strip() == "2"
    # root can remove the records; the loss shows
    await desktop.shell("echo password | sudo -S rm -rf /run/rollbook/records")
    lost = await desktop.act("done", f"{acted}; {REMOVE_ALL}")
    assert (lost.status, "removed" in str(lost.error)) == ("in_doubt", True)
    assert (await claim_phase(desktop.client, "postconfig", "another try")).state == "interrupted"
    assert (await desktop.shell(count)).strip() == "2"
    await desktop.shell("echo password | sudo -S pkill -9 -f init.[r]ecords")
    assert (await desktop.act("next", acted)).status == "in_doubt"
    result = await perform(
        desktop.client, op_id="fresh", action=acted, runtime=CANONICAL, timeout_s=10.0, first_try=True
    )
    assert (result.status, (await desktop.shell(count)).strip()) == ("ok", "3")


async def test_a_dead_desktop_is_lost_and_a_restarted_one_is_another(
    own_desk: DesktopRef, docker_client: docker.DockerClient
) -> None:
    desktop = own_desk
    nonce = await read_nonce(desktop.endpoint, 10.0)
    await desktop.client.check_nonce(nonce)
    container = docker_client.containers.get(desktop.container_id)
    container.kill()
    patience = Patience(silence_s=(0.1, 0.1))
    with pytest.raises(SandboxLost):
        await perform(
            desktop.client, op_id="op", action=desktop.mark, runtime=CANONICAL, timeout_s=10.0, patience=patience
        )
    with pytest.raises(SandboxLost):
        await observe(desktop.client)
    container.start()
    container.reload()
    port = container.attrs["NetworkSettings"]["Ports"]["5000/tcp"][0]["HostPort"]
    async with GuestClient(Endpoint(f"http://127.0.0.1:{port}")) as client, asyncio.timeout(60):
        while True:
            try:
                await client.screenshot()
                break
            except SandboxLost:
                await asyncio.sleep(0.2)
        with pytest.raises(SandboxLost, match="another guest"):
            await client.check_nonce(nonce)
    async with GuestClient(Endpoint(f"http://127.0.0.1:{port}"), nonce=nonce) as client:
        with pytest.raises(GuestReplaced):
            await perform(client, op_id="other", action=desktop.mark, runtime=CANONICAL, timeout_s=10.0)
        with pytest.raises(GuestReplaced):
            await observe(client)
        assert "other" not in {entry.op_id for entry in await read_journal(client)}, "nothing was sent"


async def test_both_runtimes_find_what_they_need(desktop: DesktopRef) -> None:
    assert await probe_runtime(desktop.client, CANONICAL) == []
    assert await probe_runtime(desktop.client, EXACT_INPUT) == []
    assert await probe_runtime(desktop.client, ActionRuntime("canonical", "python9")) != []


async def test_what_the_runtimes_type_into_a_terminal(desktop: DesktopRef) -> None:
    await desktop.terminal()
    await desktop.act("cat", "pyautogui.typewrite('cat > /tmp/typed\\n'); time.sleep(0.5)")
    await desktop.act("exact", f"pyautogui.write({TEXT!r}); pyautogui.press('enter')", EXACT_INPUT)
    await desktop.act("many", f"pyautogui.typewrite({MANY!r} + chr(10))", EXACT_INPUT)
    await desktop.act("press", "pyautogui.press(['<', 'é', '中', 'a', 'enter'])", EXACT_INPUT)
    await desktop.act(
        "keys", "pyautogui.hotkey('shift', 'b'); pyautogui.typewrite(['c', 'space', 'd', '\\n'])", EXACT_INPUT
    )
    await desktop.act("mended", "pyautogui.typewrite('x<y'); pyautogui.press('<'); pyautogui.press('enter')")
    await desktop.act("bug", "pyautogui.write('x<é中y'); pyautogui.press('enter')")
    await desktop.act("end", "time.sleep(0.5); pyautogui.hotkey('ctrl', 'd')")
    await desktop.until("! pgrep -x cat")
    lines = (await desktop.shell("cat /tmp/typed")).split("\n")
    assert lines[:4] == [TEXT, MANY, "<é中a", "Bc d"]
    assert lines[4] == "x<y<", "OSWorld's repair of literal forms"
    assert lines[5] == "x>y", "canonical keeps pyautogui's bugs elsewhere: scores stay comparable"


SPARE_KEYCODES = """
import json
from Xlib.display import Display
display = Display()
first = display.display.info.min_keycode
rows = display.get_keyboard_mapping(first, display.display.info.max_keycode - first + 1)
print(json.dumps([code for code, row in enumerate(rows, first) if not any(row)]))
"""

PLAIN_WINDOW = """
import time
from Xlib.display import Display
display = Display()
screen = display.screen()
window = screen.root.create_window(0, 0, 200, 200, 0, screen.root_depth, override_redirect=True)
window.map()
display.sync()
window.set_input_focus(1, 0)
display.sync()
time.sleep(60)
"""


async def test_what_exact_input_types_into_an_editor_under_load(desktop: DesktopRef) -> None:
    """300 different characters through some dozens of keycodes, while six busy loops have two cores."""
    spare = await desktop.shell(f"python3 -c '{SPARE_KEYCODES}'")
    await desktop.shell("touch ~/n.txt; (setsid gedit ~/n.txt > /dev/null 2>&1 &)")
    await desktop.until("wmctrl -l | grep -q n.txt")
    await desktop.act("wait", "time.sleep(2)")
    busy = "(setsid timeout 60 sh -c 'while :; do :; done' > /dev/null 2>&1 &)"
    await desktop.shell(f"for n in 1 2 3 4 5 6; do {busy}; done")
    many = "".join(chr(0x4E00 + number) for number in range(300))
    typed = f"pyautogui.write({TEXT!r} + chr(10) + 'tab' + chr(9) + {many!r} + 'then plain <text>')"
    await desktop.act("type", typed, EXACT_INPUT)
    assert await desktop.shell(f"python3 -c '{SPARE_KEYCODES}'") == spare, "all were given back"
    await desktop.act("hotkey", "pyautogui.hotkey('ctrl', 'alt', 't')")  # the window manager's: it may not be lost
    await desktop.until("wmctrl -l | grep -qi terminal")
    await desktop.shell("pkill -f 'whil[e] :'; pkill -f gnome-[t]erminal-server")
    await desktop.until("! wmctrl -l | grep -qi terminal")
    await desktop.act("save", "pyautogui.hotkey('ctrl', 's')", EXACT_INPUT)
    await desktop.until("test -s ~/n.txt")
    await desktop.shell("pkill gedit")
    assert (await desktop.shell("cat ~/n.txt")).rstrip("\n") == f"{TEXT}\ntab\t{many}then plain <text>"


async def test_observation_of_a_real_desktop(desktop: DesktopRef) -> None:
    await desktop.terminal()
    await desktop.act("type", "pyautogui.typewrite('echo rollbook-was-here\\n'); time.sleep(1)")
    seen = await observe(desktop.client, a11y=True, terminal=True)
    assert (seen.width, seen.height, seen.refused) == (1920, 1080, {})
    assert "desktop-frame" in str(seen.accessibility_tree)
    assert "rollbook-was-here" in str(seen.terminal)


async def test_a_window_that_does_not_say_what_it_has_read_gets_no_wrong_character(desktop: DesktopRef) -> None:
    await desktop.shell(f"(setsid python3 -c '{PLAIN_WINDOW}' > /dev/null 2>&1 &)")
    await desktop.act("focus", "time.sleep(1)")
    result = await perform(
        desktop.client, op_id="plain", action=f"pyautogui.write({MANY!r})", runtime=EXACT_INPUT, timeout_s=60.0
    )
    await desktop.shell("pkill -f override_redirect")
    assert result.status == "raised"
    assert "the focused window does not say that it has read what was typed before" in str(result.error)
