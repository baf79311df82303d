"""Judgements of `rollbook doctor` about the Docker engine."""

import os
from pathlib import Path

from rollbook.config.settings import Settings
from rollbook.sandboxes.docker.image import image_tag
from rollbook.stack import facts
from rollbook.stack.checks import DISK_COMFORT_GB, SETUP, Check, disk_level
from rollbook.stack.docker_engine import engine_fix, engine_problem


def check_engine(_: Settings) -> Check:
    """An engine answers, and stores images well."""
    name = "docker engine"
    if (problem := engine_problem()) is not None:
        return Check(name=name, level="fail", found=problem, fix=engine_fix(problem))
    info = facts.engine_info()
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
    size = facts.image_mb(tag)
    if size is not None:
        return Check(name=name, level="ok", found=f"{tag} ({size:.0f} MB)")
    if settings.desktop_image:
        fix = "load or pull it, or unset ROLLBOOK_DESKTOP_IMAGE to have the image built"
        return Check(name=name, level="fail", found=f"{tag} (ROLLBOOK_DESKTOP_IMAGE) is not there", fix=fix)
    return Check(name=name, level="warn", found=f"{tag} is not built yet", fix=SETUP)


def check_docker_disk(_: Settings) -> Check:
    """Room for images, and for what desktops write: in the engine's own directory, wherever the ledger is."""
    name = "docker disk"
    if engine_problem() is not None:
        return Check(name=name, level="warn", found="unknown without an engine")
    root = str(facts.engine_info()["DockerRootDir"])
    if not os.environ.get("DOCKER_HOST", "unix:").startswith(("unix:", "/")):
        return Check(name=name, level="ok", found=f"{root} is on the host of DOCKER_HOST: not looked at")
    free = facts.free_gb(Path(root))
    fix = f"free {DISK_COMFORT_GB:.0f} GB there (`docker system df`), or move it (data-root in daemon.json)"
    return Check(name=name, level=disk_level(free), found=f"{free:.1f} GB free at {root}", fix=fix)
