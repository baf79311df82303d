"""The desktop image: named by what it is made of, built when that name is not on the engine yet.

python -m rollbook.sandboxes.docker.image [--variant slim] [--base auto] [--print-tag] [--prune]
"""

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from rollbook.config.settings import PROJECT_ROOT, get_settings
from rollbook.errors import ConfigError, InvalidInput, RollbookError
from rollbook.sandboxes.docker import image_build
from rollbook.sandboxes.docker.engine import docker_client

REPOSITORY = "rollbook/desktop"
BASES = ("auto", "pull", "debootstrap")
IGNORED = ("__pycache__", ".ruff_cache", ".mypy_cache")


def context_dir() -> Path:
    """The directory with everything that the image is made of. Raises ConfigError outside a checkout."""
    path = PROJECT_ROOT / "infra" / "desktop"
    if not (path / "Dockerfile").is_file():
        raise ConfigError(f"{path} holds no Dockerfile: run from a checkout, or set ROLLBOOK_DESKTOP_IMAGE")
    return path


def input_files(directory: Path) -> list[Path]:
    """Files that the image is made of, in an order that does not depend on the file system."""
    found = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    wanted = (path for path in found if not set(path.relative_to(directory).parts) & set(IGNORED))
    return sorted(wanted, key=lambda path: path.relative_to(directory).as_posix())


def inputs_digest(variant: str = "slim", base: str | None = None, directory: Path | None = None) -> str:
    """SHA-256 (hex) over names, execute bits and contents of the inputs, the variant and the kind of base.

    Debian's package versions are not part of it: the image records them in /opt/rollbook/packages.installed.
    Raises InvalidInput for a variant or base that does not exist.
    """
    directory = directory or context_dir()
    _check_variant(variant, directory)
    digest = hashlib.sha256(f"{variant}\0{_base(base)}\0".encode())
    for path in input_files(directory):
        data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        executable = os.access(path, os.X_OK)
        digest.update(f"{path.relative_to(directory).as_posix()}\0{executable:d}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def image_tag(variant: str = "slim", base: str | None = None) -> str:
    """Name of the image that these inputs make, for example `rollbook/desktop:slim-0123456789ab`."""
    return f"{REPOSITORY}:{variant}-{inputs_digest(variant, base)[:12]}"


async def ensure_image(variant: str = "slim", *, base: str | None = None, log: Callable[[str], None] = print) -> str:
    """Build the image unless the engine has it already; returns its name.

    `base` is `auto`, `pull` or `debootstrap` (default: setting ROLLBOOK_DESKTOP_BASE). Callers on one machine wait
    for each other. Raises ConfigError for what the machine lacks, SandboxStartFailed when the build fails.
    """
    return await asyncio.to_thread(_ensure, variant, _base(base), log)


async def prune_images(log: Callable[[str], None] = print) -> list[str]:
    """Remove desktop images that no container uses and that these inputs do not make; returns their names."""
    return await asyncio.to_thread(_prune, log)


def _ensure(variant: str, base: str, log: Callable[[str], None]) -> str:
    tag = image_tag(variant, base)
    with _engine() as client:
        if _exists(client, tag):
            return tag
        with _only_one_at_a_time(log):
            if not _exists(client, tag):
                digest = inputs_digest(variant, base)
                image_build.build(client, context_dir(), variant, base, tag, digest, log)
    return tag


def _prune(log: Callable[[str], None]) -> list[str]:
    kept = {image_tag(variant) for variant in _variants(context_dir())}
    removed = []
    with _engine() as client:
        used = {container.attrs["ImageID"] for container in client.containers.list(all=True, sparse=True)}
        for image in client.images.list(name=REPOSITORY):
            for tag in set(image.tags) - kept:
                if image.id not in used and tag.startswith(f"{REPOSITORY}:"):
                    with contextlib.suppress(APIError):
                        client.images.remove(tag)
                        removed.append(tag)
                        log(f"removed {tag}")
    return removed


@contextlib.contextmanager
def _engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker_client(image_build.ENGINE_TIMEOUT_S)
    except DockerException as error:
        raise ConfigError(f"no Docker engine answers ({error}): start one, or set DOCKER_HOST") from error
    try:
        yield client
    except requests.RequestException as error:
        raise ConfigError(f"the Docker engine stopped answering: {error}") from error
    finally:
        client.close()


def _exists(client: docker.DockerClient, tag: str) -> bool:
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


@contextlib.contextmanager
def _only_one_at_a_time(log: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this machine, which all of its users share."""
    path = Path(tempfile.gettempdir()) / "rollbook-desktop-image.lock"
    try:  # `filelock` cannot: it must open the file for writing, which the kernel denies other users in /tmp
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("waiting for another build of the desktop image")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _base(base: str | None) -> str:
    chosen = base or get_settings().desktop_base
    if chosen not in BASES:
        raise InvalidInput(f"base: {chosen!r} is none of {', '.join(BASES)}")
    return chosen


def _variants(directory: Path) -> list[str]:
    return sorted(path.name.split(".")[1] for path in directory.glob("packages.*.list"))


def _check_variant(variant: str, directory: Path) -> None:
    if variant not in _variants(directory):
        raise InvalidInput(f"variant: {variant!r} is none of {', '.join(_variants(directory))}")


def main(arguments: list[str] | None = None) -> int:
    """Command line; prints the image's name last, alone on its line."""
    parser = argparse.ArgumentParser(
        prog="python -m rollbook.sandboxes.docker.image", description="Build the desktop image."
    )
    parser.add_argument("--variant", default="slim")
    parser.add_argument("--base", choices=BASES, help="default: setting ROLLBOOK_DESKTOP_BASE")
    parser.add_argument("--print-tag", action="store_true", help="only print the name; build nothing")
    parser.add_argument("--prune", action="store_true", help="afterwards remove older images that nothing uses")
    options = parser.parse_args(arguments)

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if options.print_tag:
            print(image_tag(options.variant, options.base))
            return 0
        tag = asyncio.run(ensure_image(options.variant, base=options.base, log=log))
        if options.prune:
            asyncio.run(prune_images(log))
    except RollbookError as error:
        log(f"error: {error}")
        return 1
    print(tag)
    return 0


if __name__ == "__main__":
    sys.exit(main())
