"""The desktop image as the protocol's clients meet it: one shared desktop, and fresh ones where a test needs it."""

import asyncio
import io
import json
import math
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import docker
import httpx
import pytest
from docker.models.containers import Container
from PIL import Image

from rollbook.osworld.environment import ensure_environment
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT

STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"
FLAGS: dict[str, Any] = {
    "security_opt": ["no-new-privileges"],
    "shm_size": "512m",
    "mem_limit": "2g",
    "pids_limit": 512,
    "nano_cpus": 2_000_000_000,
    "dns": ["127.0.0.1"],
}


class Desktop:
    """A running container of the image and a client of its guest server."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.http = httpx.AsyncClient(timeout=130.0, trust_env=False)

    async def connect(self) -> None:
        """Find the published ports (they change with a restart) and wait for the first screenshot."""
        deadline = time.monotonic() + 60
        while True:
            await asyncio.to_thread(self.container.reload)
            assert self.container.status in ("created", "running"), self.container.logs().decode()
            ports = self.container.attrs["NetworkSettings"]["Ports"]
            if bindings := ports.get("5000/tcp"):
                self.http.base_url = httpx.URL(f"http://127.0.0.1:{bindings[0]['HostPort']}")
                try:
                    if (await self.http.get("/screenshot")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
            assert time.monotonic() < deadline, self.container.logs().decode()
            await asyncio.sleep(0.05)

    def port(self, number: int) -> str:
        return str(self.container.attrs["NetworkSettings"]["Ports"][f"{number}/tcp"][0]["HostPort"])

    async def execute(self, command: str | list[str]) -> dict[str, Any]:
        reply = await self.http.post("/execute", json={"command": command, "shell": isinstance(command, str)})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def output(self, command: str | list[str]) -> str:
        return str((await self.execute(command))["output"])

    async def screenshot(self) -> Image.Image:
        reply = await self.http.get("/screenshot")
        assert reply.headers["content-type"] == "image/png"
        return Image.open(io.BytesIO(reply.content)).convert("RGB")

    async def terminal(self) -> str:
        reply = await self.http.get("/terminal")
        assert reply.json()["status"] == "success"
        return reply.json()["output"] or ""


async def eventually(ask: Callable[[], Awaitable[Any]], limit_s: float = 20.0) -> Any:
    """The first truthy answer, or the last one at the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = await ask()
        if answer or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.2)


StartDesktop = Callable[..., Awaitable[Desktop]]


@pytest.fixture(scope="module")
async def start_desktop(
    docker_client: docker.DockerClient, desktop_image: str, deployment_id: str
) -> AsyncIterator[StartDesktop]:
    """Starts desktops that are removed when the module is done."""
    started: list[Desktop] = []

    async def start(**changes: Any) -> Desktop:
        ports = {f"{port}/tcp": ("127.0.0.1", None) for port in (5000, 8006)}
        labels = {LABEL_DEPLOYMENT: deployment_id}
        options = {**FLAGS, "ports": ports, "labels": labels, "detach": True, **changes}
        desktop = Desktop(await asyncio.to_thread(lambda: docker_client.containers.run(desktop_image, **options)))
        started.append(desktop)
        await desktop.connect()
        return desktop

    yield start
    for desktop in started:
        await desktop.http.aclose()
        await asyncio.to_thread(desktop.container.remove, force=True, v=True)


@pytest.fixture(scope="module")
async def desktop(start_desktop: StartDesktop) -> Desktop:
    """The desktop that most tests share."""
    return await start_desktop()


@pytest.fixture
async def in_terminal(desktop: Desktop) -> AsyncIterator[Desktop]:
    """The shared desktop with a focused, empty terminal, opened by its key binding."""
    await desktop.execute(["xdotool", "key", "--clearmodifiers", "ctrl+alt+t"])
    assert await eventually(desktop.terminal), "ctrl+alt+t opened no terminal"
    yield desktop
    await desktop.execute("pkill -f gnome-terminal-server; sleep 0.5")


async def test_image_is_small(docker_client: docker.DockerClient, desktop_image: str) -> None:
    assert docker_client.images.get(desktop_image).attrs["Size"] <= 1_000_000_000


async def test_first_screenshot_shows_the_whole_desktop(start_desktop: StartDesktop) -> None:
    first = await (await start_desktop()).screenshot()
    assert first.size == (1920, 1080)
    colours = first.getcolors(maxcolors=first.width * first.height)
    assert colours is not None
    assert len(colours) > 100
    panel, background = first.crop((0, 0, 200, 32)), first.crop((300, 200, 800, 900))
    assert len(panel.getcolors(10_000) or []) > 20, "the panel shows no launchers"
    assert len(background.getcolors(500_000) or []) > 50, "the background is not painted"


async def test_pointer_is_drawn_at_its_hot_spot(desktop: Desktop) -> None:
    await desktop.execute(["xdotool", "mousemove", "400", "600"])
    assert (await desktop.http.get("/cursor_position")).json() == [400, 600]
    here = await desktop.screenshot()
    await desktop.execute(["xdotool", "mousemove", "1200", "600"])
    away = await desktop.screenshot()
    box = (380, 580, 430, 640)
    changed = [
        (x, y)
        for x in range(box[0], box[2])
        for y in range(box[1], box[3])
        if here.getpixel((x, y)) != away.getpixel((x, y))
    ]
    assert changed, "no pointer in the picture"
    assert math.dist(min(changed, key=lambda at: math.dist(at, (400, 600))), (400, 600)) <= 2


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["printf", "%s", "grüße 中文 <>&'\""], "grüße 中文 <>&'\""),
        ("printf '%s' \"$LANG $DISPLAY $DBUS_SESSION_BUS_ADDRESS $(pwd)\"", None),
        (["python", "-c", "import platform, pyautogui; print(platform.system())"], "Linux\n"),
        ("echo password | sudo -S id -u", "0\n"),
        ("sudo -n true; echo $?", "1\n"),
        ("echo wrong | sudo -S id; echo $?", "1\n"),
    ],
)
async def test_execute_gives_back_what_was_printed(desktop: Desktop, command: Any, output: str | None) -> None:
    expected = output or "en_US.UTF-8 :0 unix:path=/run/user/1000/bus /home/user"
    assert await desktop.output(command) == expected


async def test_execute_reports_return_code_and_error(desktop: Desktop) -> None:
    answer = await desktop.execute("echo out; echo err >&2; exit 3")
    assert answer == {"status": "success", "output": "out\n", "error": "err\n", "returncode": 3}
    split = await desktop.http.post("/setup/execute", json={"command": "stat -c %F ~/Desktop", "shell": False})
    assert split.json()["output"] == "directory\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/execute", {"command": ["no-such-program"]}, 500, "no-such-program"),
        ("/execute", {"command": []}, 400, "command"),
        ("/execute", ["not", "an", "object"], 400, "JSON object"),
        ("/setup/open_file", {"path": "~/nothing.odt"}, 404, "nothing.odt"),
        ("/setup/change_wallpaper", {}, 400, "path"),
        ("/list_directory", {"path": "/nowhere"}, 404, "/nowhere"),
        ("/start_recording", {}, 501, "recording"),
        ("/end_recording", {}, 501, "recording"),
    ],
)
async def test_errors_are_json_and_say_what_is_wrong(
    desktop: Desktop, path: str, body: Any, status: int, words: str
) -> None:
    reply = await desktop.http.post(path, json=body)
    assert reply.status_code == status
    assert reply.json()["status"] == "error"
    assert words in reply.json()["message"]


async def test_a_background_program_does_not_hold_the_answer(desktop: Desktop) -> None:
    async with asyncio.timeout(20):
        answer = await desktop.execute("echo started; sleep 77.7 &")
    assert answer["output"] == "started\n"
    assert await desktop.output(["pkill", "-c", "-f", "sleep 77.7"]) == "1\n"


async def test_commands_run_side_by_side(desktop: Desktop) -> None:
    meet = "touch /tmp/meet-{0}; for i in $(seq 200); do [ -e /tmp/meet-{1} ] && exit 0; sleep 0.05; done; exit 1"
    both = [desktop.execute(meet.format(*pair)) for pair in (("a", "b"), ("b", "a"))]
    assert [answer["returncode"] for answer in await asyncio.gather(*both)] == [0, 0]


async def test_a_command_at_its_limit_is_killed_with_all_it_started(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S": "1"})
    command = {"command": "sleep 55.5 & sleep 55.5", "shell": True}
    reply = await desktop.http.post("/execute", json=command)
    assert reply.status_code == 500
    assert "1 seconds" in reply.json()["message"]
    assert await desktop.output("pgrep -fx 'sleep 55.5' | wc -l") == "0\n"
    script = {"script": "echo begun; sleep 30", "timeout": 0.5}
    assert (await desktop.http.post("/run_bash_script", json=script)).json()["returncode"] == -1


async def test_typing_reaches_the_terminal_and_comes_back(in_terminal: Desktop) -> None:
    await in_terminal.execute(["xdotool", "type", "echo $((6*7)) '<a>' \"&\"\n"])
    assert await eventually(lambda: shows(in_terminal, "42 <a> &"))
    await in_terminal.execute("printf %s 'echo zażółć_中文' | xclip -selection clipboard")
    await in_terminal.execute(["xdotool", "key", "ctrl+shift+v", "Return"])
    assert await eventually(lambda: shows(in_terminal, "\nzażółć_中文"))


async def test_sudo_asks_in_the_terminal(in_terminal: Desktop) -> None:
    await in_terminal.execute(["xdotool", "type", "sudo -k; sudo sh -c 'echo I-am-$(id -un)'\n"])
    assert await eventually(lambda: shows(in_terminal, "password for user"))
    await in_terminal.execute(["xdotool", "type", "password\n"])
    assert await eventually(lambda: shows(in_terminal, "\nI-am-root"))


async def shows(desktop: Desktop, text: str) -> bool:
    return text in await desktop.terminal()


async def test_accessibility_tree_speaks_osworlds_vocabulary(in_terminal: Desktop) -> None:
    root = ET.fromstring((await in_terminal.http.get("/accessibility")).json()["AT"])
    assert root.tag == "desktop-frame"
    applications = {application.get("name"): application for application in root.findall("application")}
    assert {"gnome-terminal-server", "pcmanfm"} <= applications.keys()
    terminals = [node for node in root.iter("terminal") if node.get(f"{STATE}focused") == "true"]
    assert len(terminals) == 1
    assert "@desktop" in (terminals[0].text or "")
    assert terminals[0].get(f"{COMPONENT}screencoord", "").startswith("(")
    assert terminals[0].get(f"{COMPONENT}size", "").startswith("(")


async def test_terminal_is_null_without_a_terminal(desktop: Desktop) -> None:
    assert (await desktop.http.get("/terminal")).json() == {"output": None, "status": "success"}


async def test_files_go_in_and_come_out(desktop: Desktop) -> None:
    content = bytes(range(256)) * 4096
    form = {"file_path": "~/Documents/new/ünï.bin"}
    stored = await desktop.http.post("/setup/upload", data=form, files={"file_data": ("x", content)})
    assert (stored.status_code, stored.text) == (200, "File Uploaded")
    fetched = await desktop.http.post("/file", data=form)
    assert fetched.status_code == 200
    assert fetched.content == content
    for path, status in (("/home/user/absent", 404), ("/etc", 404), ("/etc/shadow", 403)):
        assert (await desktop.http.post("/file", data={"file_path": path})).status_code == status
    tree = (await desktop.http.post("/list_directory", json={"path": "/home/user/Documents"})).json()
    inner = {"type": "directory", "name": "new", "children": [{"type": "file", "name": "ünï.bin"}]}
    assert tree["directory_tree"] == {"type": "directory", "name": "Documents", "children": [inner]}


async def test_a_document_opens_in_the_editor(desktop: Desktop) -> None:
    await desktop.execute("echo hello > ~/Desktop/letter.txt")
    opened = await desktop.http.post("/setup/open_file", json={"path": "/home/user/Desktop/letter.txt"})
    assert opened.status_code == 200, opened.text
    size = (await desktop.http.post("/window_size", data={"app_class_name": "Gedit"})).json()
    assert size["width"] > 300
    assert (await desktop.http.post("/window_size", data={"app_class_name": "Nothing"})).status_code == 404
    window = {"window_name": "letter.txt", "strict": False, "by_class": False}
    assert (await desktop.http.post("/setup/activate_window", json=window)).status_code == 200
    assert "letter.txt" in await desktop.output(["xdotool", "getactivewindow", "getwindowname"])
    assert (await desktop.http.post("/setup/close_window", json=window)).status_code == 200

    async def closed() -> bool:
        return "letter.txt" not in await desktop.output(["wmctrl", "-l"])

    assert await eventually(closed)


async def test_launch_and_verification(desktop: Desktop) -> None:
    launched = await desktop.http.post("/setup/launch", json={"command": ["pcmanfm", "/usr/share"], "shell": False})
    assert launched.status_code == 200
    verify = {"command": ["true"], "verification": {"window_exists": "share"}, "max_wait_time": 15}
    verified = await desktop.http.post("/setup/execute_with_verification", json={**verify, "check_interval": 0.2})
    assert verified.status_code == 200
    assert verified.json()["verification"] == {"window_exists": True}
    verify = {"command": ["true"], "verification": {"command_success": "false"}, "max_wait_time": 0.3}
    failed = await desktop.http.post("/setup/execute_with_verification", json={**verify, "check_interval": 0.1})
    assert failed.status_code == 500
    assert "command_success" in failed.json()["message"]
    await desktop.execute(["wmctrl", "-c", "share"])


async def test_wallpaper_is_painted_and_reported(desktop: Desktop) -> None:
    red = io.BytesIO()
    Image.new("RGB", (64, 36), (200, 10, 20)).save(red, "PNG")
    form = {"file_path": "/home/user/Pictures/red one.png"}
    await desktop.http.post("/setup/upload", data=form, files={"file_data": ("red.png", red.getvalue())})
    changed = await desktop.http.post("/setup/change_wallpaper", json={"path": form["file_path"]})
    assert changed.status_code == 200, changed.text
    assert (await desktop.http.post("/wallpaper")).content == red.getvalue()

    async def painted() -> bool:
        return (await desktop.screenshot()).getpixel((1800, 1000)) == (200, 10, 20)

    assert await eventually(painted)


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


async def test_live_view_wants_its_password_and_only_shows(start_desktop: StartDesktop) -> None:
    desktop = await start_desktop(environment={"VNC_PASSWORD": "look-" + uuid.uuid4().hex[:3]}, init=True)
    async with httpx.AsyncClient(trust_env=False) as view:
        url = f"http://127.0.0.1:{desktop.port(8006)}/vnc.html"

        async def served() -> bool:
            try:
                return "noVNC" in (await view.get(url)).text
            except httpx.TransportError:
                return False

        assert await eventually(served)
    assert "look-" not in await desktop.output("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true")
    assert (await desktop.execute("cat /run/rollbook/vnc-passwords"))["returncode"] != 0


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
