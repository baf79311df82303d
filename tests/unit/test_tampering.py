"""Signs that a guest server is not the image's; tests/integration/test_tampering.py has the engine show some."""

import pytest

from rollbook.sandboxes.docker.tampering import Changes, changes_of, problems, server_process

CHANGED, ADDED, DELETED = 0, 1, 2


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/rollbook", CHANGED),
        ("/opt/rollbook/guest/app.py", CHANGED),
        ("/opt/rollbook/flask.py", ADDED),
        ("/opt/rollbook/init/records.py", DELETED),
        ("/usr/bin/python3.11", CHANGED),
        ("/etc/ld.so.preload", ADDED),
        ("/usr/lib/python3/dist-packages/sitecustomize.py", ADDED),
    ],
)
def test_files_of_the_guest_server(path: str, kind: int) -> None:
    assert changes_of([{"Path": path, "Kind": kind}]) == Changes([path], [])


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        # a desktop in use
        ("/home/user/.local/bin/cat", ADDED),
        ("/tmp/x", ADDED),
        ("/run/rollbook/records/x", ADDED),
        ("/var/log/rollbook/guest.log", CHANGED),
        # `sudo apt install`, `sudo pip install`, an administrator's edits
        ("/usr/bin/curl", ADDED),
        ("/usr/lib/python3/dist-packages/six.py", ADDED),
        ("/usr/local/lib/python3.11/dist-packages/flask/app.py", ADDED),
        ("/usr/local/lib/python3.11/dist-packages/distutils-precedence.pth", ADDED),
        ("/var/lib/dpkg/status", CHANGED),
        ("/etc/ld.so.cache", CHANGED),
        ("/etc/passwd", CHANGED),
        ("/usr/lib/x86_64-linux-gnu/gdk-pixbuf-2.0/2.10.0/loaders.cache", CHANGED),
        ("/usr/share/glib-2.0/schemas/gschemas.compiled", CHANGED),
        ("/usr/bin/python3-config", ADDED),
    ],
)
def test_honest_changes(path: str, kind: int) -> None:
    assert changes_of([{"Path": path, "Kind": kind}]) == Changes([], [])


def test_programs_that_are_not_the_images_are_recorded() -> None:
    rows = [("/usr/bin", CHANGED), ("/usr/bin/cat", CHANGED), ("/usr/bin/wc", DELETED), ("/usr/bin/new", ADDED)]
    changes = changes_of({"Path": path, "Kind": kind} for path, kind in rows)
    assert changes == Changes([], ["/usr/bin/cat", "/usr/bin/wc"])
    assert problems(changes, "", None) == [], "they are evidence, and may be honest"


ROW = "{pid} {parent} 30 {command}"


def top(*rows: tuple[int, int, str]) -> dict[str, object]:
    """As the engine has it: split at spaces into as many cells as there are titles."""
    lines = [ROW.format(pid=pid, parent=parent, command=command) for pid, parent, command in rows]
    return {"Processes": [line.split(None, 3) for line in lines]}


SERVER = "/usr/bin/python3 -s -m guest.app"


def test_the_servers_process_is_inits_child() -> None:
    seen = top((10, 1, "/usr/bin/python3 -m init"), (11, 10, "Xvfb :0"), (12, 10, SERVER))
    assert server_process(seen, 10, 1000.5) == "12@970"
    assert server_process(top((12, 11, SERVER)), 10, 0) == "", "another program calls itself so"
    assert server_process(top((12, 10, f"{SERVER} --and-more")), 10, 0) == ""
    assert server_process({"Processes": None}, 10, 0) == ""


def test_another_process_is_another_server() -> None:
    quiet = Changes([], [])
    assert problems(quiet, "12@970", "12@972") == [], "clocks and engines are not exact"
    assert problems(quiet, "12@970", None) == [], "a stopped desktop has no processes"
    assert problems(quiet, "", "") == [], "a guest of another make"
    for now in ("", "77@970", "12@1100"):
        (problem,) = problems(quiet, "12@970", now)
        assert "is not the process of the start" in problem
