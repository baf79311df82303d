"""How this machine reaches Debian's packages, so that a build container can reach them the same way.

No mirror is written down here but Debian's public one: others come from this machine's own apt settings or from
`ROLLBOOK_APT_MIRROR` (URL of a Debian mirror). The settings are removed again in the layer that uses them.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rollbook.config.settings import load_settings
from rollbook.errors import ConfigError

PUBLIC_MIRROR = "http://deb.debian.org/debian"
PUBLIC_SECURITY = "http://deb.debian.org/debian-security"
SUITE = "bookworm"
KEPT_OPTIONS = re.compile(r"^Acquire::(https?::|Check-Valid-Until|Check-Date|Retries|ForceIPv4)")
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES_IN_BUILD = "/tmp/build/apt/ca.crt"


@dataclass(frozen=True)
class AptSettings:
    """Mirror and security mirror (URLs), and lines of apt.conf."""

    mirror: str = PUBLIC_MIRROR
    security: str | None = PUBLIC_SECURITY
    options: tuple[str, ...] = ()

    @property
    def needs_host_network(self) -> bool:
        """Whether something is reached through this machine's loopback (a caching proxy, as a rule)."""
        return bool(re.search(r"//(127\.|localhost|\[::1\])", " ".join([self.mirror, *self.options])))

    def proxy_environment(self) -> dict[str, str]:
        """apt's proxies as the variables that debootstrap's downloader knows."""
        found = (re.match(r'Acquire::(https?)::Proxy "(http[^"]+)";', line) for line in self.options)
        return {f"{match[1]}_proxy": match[2] for match in found if match}


def of_this_machine() -> AptSettings:
    """The settings that count here. Raises ConfigError when they hold a password: it would stay in the image."""
    mirror = (load_settings().apt_mirror or "").rstrip("/")
    if mirror:
        security = re.sub(r"/debian$", "/debian-security", mirror)
        settings = AptSettings(mirror, security if security != mirror else None, _options())
    else:
        uris = _uris_by_suite()
        settings = AptSettings(
            uris.get(SUITE, PUBLIC_MIRROR),
            uris.get(f"{SUITE}-security", None if SUITE in uris else PUBLIC_SECURITY),
            _options(),
        )
    for text in (settings.mirror, settings.security or "", *settings.options):
        if re.search(r"//[^/\s\"]*@", text):
            raise ConfigError(
                "apt's settings hold a user name or password, which would stay in the image's layers: "
                "set ROLLBOOK_APT_MIRROR to a mirror without one"
            )
    return settings


def write(settings: AptSettings, directory: Path) -> None:
    """The build's `apt/` directory: sources.list, apt.conf and, for https, this machine's certificates."""
    directory.mkdir()
    (directory / "sources.list").write_text(_sources(settings.mirror, settings.security, SUITE))
    options = list(settings.options)
    if settings.mirror.startswith("https:") and HOST_CERTIFICATES.is_file():
        shutil.copy(HOST_CERTIFICATES, directory / "ca.crt")
        options = [line for line in options if "CAInfo" not in line]
        options.append(f'Acquire::https::CAInfo "{CERTIFICATES_IN_BUILD}";')
    (directory / "apt.conf").write_text("".join(f"{line}\n" for line in options))


def public_sources(suite: str) -> str:
    """sources.list of Debian's public mirror, for the finished image."""
    return _sources(PUBLIC_MIRROR, PUBLIC_SECURITY, suite)


def _sources(mirror: str, security: str | None, suite: str) -> str:
    lines = [f"deb {mirror} {suite} main"]
    if security:
        lines.append(f"deb {security} {suite}-security main")
    return "".join(f"{line}\n" for line in lines)


def _options() -> tuple[str, ...]:
    if not shutil.which("apt-config"):
        return ()
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30, check=False).stdout
    lines = (line for line in dump.splitlines() if KEPT_OPTIONS.match(line) and not line.endswith('"";'))
    return tuple(line for line in lines if "CAPath" not in line)


def _uris_by_suite() -> dict[str, str]:
    """First http(s) URI per suite in this machine's sources, in both of apt's formats."""
    found: dict[str, str] = {}
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in files:
        if not path.is_file() or not os.access(path, os.R_OK):
            continue
        text = path.read_text(errors="replace")
        entries = deb822_entries(text) if path.suffix == ".sources" else one_line_entries(text)
        for uri, suite in entries:
            found.setdefault(suite, uri.rstrip("/"))
    return found


def one_line_entries(text: str) -> list[tuple[str, str]]:
    """(URI, suite) of each line of a sources.list that offers `main` over http(s)."""
    pattern = re.compile(r"^deb\s+(?:\[[^]]*]\s+)?(https?://\S+)\s+(\S+)\s+.*\bmain\b", re.MULTILINE)
    return [(match[1], match[2]) for match in pattern.finditer(text)]


def deb822_entries(text: str) -> list[tuple[str, str]]:
    """(URI, suite) of each enabled stanza of a .sources file that offers `main` over http(s)."""
    entries = []
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", stanza, re.MULTILINE))
        if (
            fields.get("Enabled", "yes").lower() in ("no", "false")
            or "main" not in fields.get("Components", "").split()
        ):
            continue
        for uri in fields.get("URIs", "").split():
            if uri.startswith(("http://", "https://")):
                entries += [(uri, suite) for suite in fields.get("Suites", "").split()]
    return entries
