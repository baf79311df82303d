"""Checks of `rollbook doctor` about the Docker engine."""

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from docker.errors import DockerException, ImageNotFound

from rollbook.config.findings import DISK_COMFORT_GB, SETUP, Check, disk_level, free_gb
from rollbook.config.settings import PROJECT_ROOT, Settings
from rollbook.sandboxes.docker.engine import docker_client
from rollbook.sandboxes.docker.image import image_tag

TIMEOUT_S = 10.0
SETUP_SCRIPT = PROJECT_ROOT / "scripts" / "bootstrap.sh"
"""`bootstrap.sh engine` installs and starts a Docker engine."""


def check_engine(_: Settings) -> Check:
    """An engine answers, and stores images well."""
    name = "docker engine"
    if (problem := engine_problem()) is not None:
        return Check(name=name, level="fail", found=problem, fix=engine_fix(problem))
    info = engine_info()
    found = f"{info['ServerVersion']}, storage {info['Driver']}"
    if info["Driver"] == "vfs":
        return Check(
            name=name,
            level="warn",
            found=f"{found}: every desktop copies the whole image",
            fix=f"put {info['DockerRootDir']} on a file system that overlay2 works on (ext4, xfs)",
        )
    return Check(name=name, level="ok", found=found)


def check_image(settings: Settings) -> Check:
    """The desktop image is on the engine."""
    name = "desktop image"
    if engine_problem() is not None:
        return Check(name=name, level="warn", found="unknown without an engine")
    tag = settings.desktop_image or image_tag()
    size = image_mb(tag)
    if size is not None:
        return Check(name=name, level="ok", found=f"{tag} ({size:.0f} MB)")
    if settings.desktop_image:
        fix = "load or pull it, or unset ROLLBOOK_DESKTOP_IMAGE to have the image built"
        return Check(name=name, level="fail", found=f"{tag} (ROLLBOOK_DESKTOP_IMAGE) is not there", fix=fix)
    return Check(name=name, level="warn", found=f"{tag} is not built yet", fix=SETUP)


def check_docker_disk(_: Settings) -> Check:
    """Disk space for images and for what desktops write, in the engine's own directory."""
    name = "docker disk"
    if engine_problem() is not None:
        return Check(name=name, level="warn", found="unknown without an engine")
    root = str(engine_info()["DockerRootDir"])
    if not os.environ.get("DOCKER_HOST", "unix:").startswith(("unix:", "/")):
        return Check(name=name, level="ok", found=f"{root} is on the host of DOCKER_HOST: not looked at")
    free = free_gb(Path(root))
    fix = f"free {DISK_COMFORT_GB:.0f} GB there (`docker system df`), or move it (data-root in daemon.json)"
    return Check(name=name, level=disk_level(free), found=f"{free:.1f} GB free at {root}", fix=fix)


def engine_problem() -> str | None:
    """Return None if the engine answers, else the error in one line."""
    try:
        with closing(docker_client(TIMEOUT_S)) as client:
            client.ping()
    except (DockerException, OSError) as error:
        return str(error).splitlines()[0]
    return None


def engine_fix(problem: str) -> str:
    """Return what the user can do about `problem`."""
    if os.environ.get("DOCKER_HOST"):
        return "start the engine that DOCKER_HOST names, or unset DOCKER_HOST"
    if may_set_up_engine():
        return "`rollbook up` starts it, or installs it first on Debian and Ubuntu"
    if "Permission denied" in problem:
        return "`sudo usermod -aG docker $USER`, then log in again"
    if shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin") is None:
        return "`sudo apt-get install docker.io` and `sudo usermod -aG docker $USER`, then log in again"
    return "`sudo systemctl start docker`"


def may_set_up_engine() -> bool:
    """True where `rollbook up` may run the setup script: as root, in a checkout, for the engine of this machine."""
    return os.geteuid() == 0 and not os.environ.get("DOCKER_HOST") and SETUP_SCRIPT.exists()


def engine_info() -> dict[str, Any]:
    """Return the engine's description of itself."""
    with closing(docker_client(TIMEOUT_S)) as client:
        return dict(client.info())


def image_mb(tag: str) -> float | None:
    """Return the size of an image on the engine; None when it is not there."""
    with closing(docker_client(TIMEOUT_S)) as client:
        try:
            return float(client.images.get(tag).attrs["Size"]) / 1e6
        except ImageNotFound:
            return None
