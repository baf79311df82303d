"""The desktop image: named by what it is made of, built when that name is not on the engine yet.

python -m rollbook.sandboxes.docker.image [--variant slim] [--base auto] [--print-tag] [--prune]
"""

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import docker
import requests
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

from rollbook.config.child_environment import PACKAGES, child_environment
from rollbook.config.settings import PROJECT_ROOT, get_settings, load_settings
from rollbook.errors import ConfigError, InvalidInput, RollbookError, SandboxStartFailed
from rollbook.redaction import redact_head
from rollbook.sandboxes.docker.engine import MANIFEST_LABEL, docker_client, explain

# Building the desktop image: a Debian base, wheels and apt settings from this machine, one `docker build`.
#
# No mirror is named here but Debian's public one: others come from this machine's own apt settings or from
# `ROLLBOOK_APT_MIRROR` (URL of a Debian mirror). The settings are removed again in the layer that uses them.


ENGINE_TIMEOUT_S = 900
PULL_TIMEOUT_S = 60
"""Seconds of silence of a pull after which `auto` builds the base itself."""
PUBLIC_BASE = "debian:bookworm-slim"
PUBLIC_MIRROR = "http://deb.debian.org/debian"
PUBLIC_SECURITY = "http://deb.debian.org/debian-security"
SUITE = "bookworm"
KEPT_OPTIONS = re.compile(r"^Acquire::(https?::|Check-Valid-Until|Check-Date|Retries|ForceIPv4)")
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES_IN_BUILD = "/tmp/build/apt/ca.crt"
NEEDED_ENGINE_BYTES = 3_000_000_000
NEEDED_TEMP_BYTES = 700_000_000
NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/lib/apt/lists")
"""Directories that Debian's own slim image leaves out too, and package lists, which the build fetches anew."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class AptSettings:
    """Mirror and security mirror (URLs), and lines of apt.conf."""

    mirror: str = PUBLIC_MIRROR
    security: str | None = PUBLIC_SECURITY
    options: tuple[str, ...] = ()

    @property
    def needs_host_network(self) -> bool:
        """True when something is reached through this machine's loopback (a caching proxy, as a rule)."""
        return bool(re.search(r"//(127\.|localhost|\[::1\])", " ".join([self.mirror, *self.options])))

    def proxy_environment(self) -> dict[str, str]:
        """apt's proxies as the variables that debootstrap's downloader knows."""
        found = (re.match(r'Acquire::(https?)::Proxy "(http[^"]+)";', line) for line in self.options)
        return {f"{match[1]}_proxy": match[2] for match in found if match}


def build(client: docker.DockerClient, source: Path, variant: str, base: str, tag: str, digest: str, log: Log) -> None:
    """Build and tag the image. Raises ConfigError for what is missing, SandboxStartFailed for a failed build."""
    started = time.monotonic()
    _check_space(client)
    apt = apt_of_this_machine()
    kind, base_image = _base_image(client, base, apt, log)
    with tempfile.TemporaryDirectory(prefix="rollbook-image-") as scratch:
        context = Path(scratch) / "context"
        shutil.copytree(source, context, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        _wheels(context, log)
        write_apt(apt, context / "apt")
        log(f"building {tag} on {base_image}")
        labels = {"rollbook.variant": variant, "rollbook.inputs": digest, "rollbook.base": kind}
        arguments = {"BASE_IMAGE": base_image, "VARIANT": variant}
        bare = f"{tag}-bare"
        _docker_build(client, context, bare, arguments, labels, apt, log)
        _label(client, bare, tag)
    size_mb = client.images.get(tag).attrs["Size"] / 1e6
    log(f"built {tag}: {size_mb:.0f} MB in {time.monotonic() - started:.0f} s")


def _label(client: docker.DockerClient, bare: str, tag: str) -> None:
    """Tag the image with its manifest as a label. Only then it has its name: nothing starts one without a manifest."""
    try:
        container = client.containers.create(bare)
        try:
            chunks, _ = container.get_archive(MANIFEST_FILE)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                file = archive.extractfile(PurePosixPath(MANIFEST_FILE).name)
                assert file is not None, "a plain file of the Dockerfile"
                manifest = file.read().decode().strip()
        finally:
            container.remove(force=True)
        client.images.build(
            fileobj=io.BytesIO(f"FROM {bare}\n".encode()), tag=tag, labels={MANIFEST_LABEL: manifest}, rm=True
        )
        client.images.remove(bare)
    except (APIError, BuildError) as error:
        raise SandboxStartFailed(f"the desktop image could not be given its manifest: {error}") from error


def _docker_build(
    client: docker.DockerClient,
    context: Path,
    tag: str,
    arguments: dict[str, str],
    labels: dict[str, str],
    apt: AptSettings,
    log: Log,
) -> None:
    last: deque[str] = deque(maxlen=25)
    network = "host" if apt.needs_host_network else None
    try:
        for message in client.api.build(
            path=str(context),
            tag=tag,
            buildargs=arguments,
            labels=labels,
            rm=True,
            forcerm=True,
            decode=True,
            network_mode=network,
        ):
            line = str(message.get("stream") or message.get("error") or "").rstrip()
            if line:
                last.append(line)
            if line.startswith("Step "):
                log(f"  {redact_head(line.splitlines()[0], 100)}")
            if "error" in message:
                raise SandboxStartFailed("the desktop image could not be built; last lines:\n" + "\n".join(last))
    except (APIError, BuildError) as error:
        raise SandboxStartFailed(f"the desktop image could not be built: {error}") from error


def _base_image(client: docker.DockerClient, base: str, apt: AptSettings, log: Log) -> tuple[str, str]:
    """The kind of base that is used in the end (`pull` or `debootstrap`), and its image."""
    if base in ("auto", "pull"):
        problem = _pull(client, log)
        if problem is None:
            return "pull", PUBLIC_BASE
        if base == "pull":
            raise ConfigError(
                f"{PUBLIC_BASE} cannot be pulled ({problem}): give the engine access to a registry, or set "
                "ROLLBOOK_DESKTOP_BASE=debootstrap"
            )
        log(f"no registry ({problem}); making the base with debootstrap")
    return "debootstrap", _debootstrap(client, apt, log)


def _pull(client: docker.DockerClient, log: Log) -> str | None:
    """None when the public base is there, else why not."""
    try:
        client.images.get(PUBLIC_BASE)
        return None
    except ImageNotFound:
        log(f"pulling {PUBLIC_BASE}")
    try:
        with closing(docker_client(PULL_TIMEOUT_S)) as puller:
            puller.images.pull(PUBLIC_BASE)
    except (DockerException, requests.RequestException) as error:
        return explain(error)
    return None


def _debootstrap(client: docker.DockerClient, apt: AptSettings, log: Log) -> str:
    """A minimal Debian as image `rollbook/base:bookworm`; an existing one is used again."""
    name = f"rollbook/base:{SUITE}"
    try:
        client.images.get(name)
        return name
    except ImageNotFound:
        _require_debootstrap(log)
    log(f"debootstrap {SUITE} (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="rollbook-base-") as scratch:
        root = Path(scratch) / "root"
        command = ["debootstrap", "--variant=minbase", SUITE, str(root), apt.mirror]
        _run(command, "debootstrap", timeout_s=1200, environment=apt.proxy_environment())
        for path in (root / "var/cache/apt/archives").glob("*.deb"):
            path.unlink()
        for name_inside in NOT_NEEDED:
            shutil.rmtree(root / name_inside, ignore_errors=True)
            (root / name_inside).mkdir()
        (root / "etc/apt/sources.list").write_text(_sources(PUBLIC_MIRROR, PUBLIC_SECURITY))
        archive = Path(scratch) / "root.tar"
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(root, arcname=".")
        client.api.import_image(src=str(archive), repository="rollbook/base", tag=SUITE)
    return name


def _require_debootstrap(log: Log) -> None:
    if os.geteuid() != 0:
        raise ConfigError(
            f"the base image needs root once: run `sudo {sys.executable} -m rollbook.sandboxes.docker.image`, or make "
            f"{PUBLIC_BASE} available to the Docker engine"
        )
    if shutil.which("debootstrap"):
        return
    if not shutil.which("apt-get"):
        raise ConfigError(f"debootstrap is missing: install it, or make {PUBLIC_BASE} available to the Docker engine")
    _apt_install(["debootstrap", "debian-archive-keyring"], log)


def _apt_install(packages: list[str], log: Log) -> None:
    log(f"installing {' '.join(packages)}")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    try:
        _run(install, "apt-get install", timeout_s=600)
    except SandboxStartFailed:  # as a rule the package lists are old or were never fetched
        _run(["apt-get", "update", "-q"], "apt-get update", timeout_s=600)
        _run(install, "apt-get install", timeout_s=600)


def _wheels(context: Path, log: Log) -> None:
    """Fetch pyautogui and its parts with this machine's pip, whose index settings the container does not have."""
    log("fetching wheels")
    target = context / "wheels"
    target.mkdir()
    arguments = ["wheel", "-q", "--no-deps", "-r", str(context / "wheels.list"), "-w", str(target)]
    _run([*_pip(log), *arguments], "pip wheel", timeout_s=600)


def _pip(log: Log) -> list[str]:
    """A pip that works: this environment's, or the system's (environments made by uv have none)."""
    system = ["/usr/bin/python3", "-m", "pip"]
    for command in ([sys.executable, "-m", "pip"], system, ["pip3"], ["uvx", "pip"]):
        if _works([*command, "--version"]):
            return command
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install(["python3-pip"], log)
        return system
    raise ConfigError("pip is missing: apt-get install python3-pip (it fetches pyautogui for the desktop image)")


def _works(command: list[str]) -> bool:
    if not shutil.which(command[0]):
        return False
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _run(command: list[str], what: str, *, timeout_s: float, environment: dict[str, str] | None = None) -> None:
    env = {**child_environment(*PACKAGES), "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    except subprocess.TimeoutExpired as error:
        raise SandboxStartFailed(f"{what} took longer than {timeout_s:g} s") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SandboxStartFailed(f"{what} failed with code {done.returncode}:\n{tail}")


def _check_space(client: docker.DockerClient) -> None:
    """Before anything is fetched. The engine's disk is checked only when it is on this machine."""
    needs = {Path(tempfile.gettempdir()): NEEDED_TEMP_BYTES}
    if client.api.base_url.startswith("http+docker"):
        needs[Path(client.info()["DockerRootDir"])] = NEEDED_ENGINE_BYTES
    for path, needed in needs.items():
        while not os.access(path, os.R_OK | os.X_OK):
            path = path.parent
        free = shutil.disk_usage(path).free
        if free < needed:
            raise ConfigError(
                f"{path} has {free / 1e9:.1f} GB free, the desktop image needs {needed / 1e9:.1f} GB: make room there "
                "(`docker system prune`), or set TMPDIR"
            )


def apt_of_this_machine() -> AptSettings:
    """The settings that count here. Raises ConfigError when they hold a password: it would stay in the image."""
    mirror = (load_settings().apt_mirror or "").rstrip("/")
    if mirror:
        security = re.sub(r"/debian$", "/debian-security", mirror)
        settings = AptSettings(mirror, security if security != mirror else None, _apt_options())
    else:
        uris = _apt_uris()
        settings = AptSettings(
            uris.get(SUITE, PUBLIC_MIRROR),
            uris.get(f"{SUITE}-security", None if SUITE in uris else PUBLIC_SECURITY),
            _apt_options(),
        )
    for text in (settings.mirror, settings.security or "", *settings.options):
        if re.search(r"//[^/\s\"]*@", text):
            raise ConfigError(
                "apt's settings hold a user name or password, which would stay in the image's layers: "
                "set ROLLBOOK_APT_MIRROR to a mirror without one"
            )
    return settings


def write_apt(settings: AptSettings, directory: Path) -> None:
    """The build's `apt/` directory: sources.list, apt.conf and, for https, this machine's certificates."""
    directory.mkdir()
    (directory / "sources.list").write_text(_sources(settings.mirror, settings.security))
    options = list(settings.options)
    if settings.mirror.startswith("https:") and HOST_CERTIFICATES.is_file():
        shutil.copy(HOST_CERTIFICATES, directory / "ca.crt")
        options = [line for line in options if "CAInfo" not in line]
        options.append(f'Acquire::https::CAInfo "{CERTIFICATES_IN_BUILD}";')
    (directory / "apt.conf").write_text("".join(f"{line}\n" for line in options))


def _sources(mirror: str, security: str | None) -> str:
    lines = [f"deb {mirror} {SUITE} main"]
    if security:
        lines.append(f"deb {security} {SUITE}-security main")
    return "".join(f"{line}\n" for line in lines)


def _apt_options() -> tuple[str, ...]:
    if not shutil.which("apt-config"):
        return ()
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30, check=False).stdout
    lines = (line for line in dump.splitlines() if KEPT_OPTIONS.match(line) and not line.endswith('"";'))
    return tuple(line for line in lines if "CAPath" not in line)


def _apt_uris() -> dict[str, str]:
    """First http(s) URI per suite that this machine's apt takes `main` from."""
    uris: dict[str, str] = {}
    if shutil.which("apt-get"):
        targets = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
        for line in subprocess.run(
            targets, capture_output=True, text=True, timeout=120, check=False
        ).stdout.splitlines():
            suite, component, uri = line.split(" ", 2)
            if component == "main" and uri.startswith(("http://", "https://")):
                uris.setdefault(suite, uri.rstrip("/"))
    return uris


MANIFEST_FILE = "/opt/rollbook/manifest.json"
"""Path in the image of its manifest, which its build wrote; also the image's label `MANIFEST_LABEL`."""

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
                build(client, context_dir(), variant, base, tag, digest, log)
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
        client = docker_client(ENGINE_TIMEOUT_S)
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
