"""The desktop image as the protocol's clients meet it, on one shared desktop."""

import asyncio
import io
import math
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from typing import Any

import docker
import pytest
from PIL import Image

from tests.support.desktop import Desktop, StartDesktop, desktops, eventually

STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"


@pytest.fixture(scope="module")
async def start_desktop(
    docker_client: docker.DockerClient, desktop_image: str, deployment_id: str
) -> AsyncIterator[StartDesktop]:
    """Starts desktops that are removed when the module is done."""
    async with desktops(docker_client, desktop_image, deployment_id) as start:
        yield start


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
    assert answer.pop("out_of_memory") is False, "an addition to OSWorld's answer"
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
