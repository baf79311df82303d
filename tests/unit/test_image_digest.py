"""The image's name changes when something that it is made of changes, and only then."""

import shutil
from pathlib import Path

import pytest

from rollbook.errors import ConfigError, InvalidInput
from rollbook.sandboxes.docker import image
from rollbook.sandboxes.docker.image import context_dir, image_tag, input_files, inputs_digest


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A copy of the image's inputs that a test may change."""
    copy = tmp_path / "desktop"
    shutil.copytree(context_dir(), copy, symlinks=True)
    return copy


def digest(directory: Path, variant: str = "slim", base: str = "auto") -> str:
    return inputs_digest(variant, base, directory)


def test_a_copy_has_the_same_digest(inputs: Path) -> None:
    assert digest(inputs) == digest(context_dir())


def test_times_and_caches_do_not_count(inputs: Path) -> None:
    before = digest(inputs)
    (inputs / "Dockerfile").touch()
    (inputs / "guest" / "__pycache__").mkdir(exist_ok=True)
    (inputs / "guest" / "__pycache__" / "app.cpython-311.pyc").write_bytes(b"cache")
    assert digest(inputs) == before


@pytest.mark.parametrize("name", ["Dockerfile", "wheels.list", "guest/app.py", "rootfs/etc/rollbook/openbox.xml"])
def test_each_content_counts(inputs: Path, name: str) -> None:
    before = digest(inputs)
    with (inputs / name).open("a") as file:
        file.write("\n")
    assert digest(inputs) != before


def test_names_and_execute_bits_count(inputs: Path) -> None:
    before = digest(inputs)
    sudo = inputs / "rootfs/usr/bin/sudo"
    sudo.chmod(0o644)
    without_bit = digest(inputs)
    sudo.chmod(0o755)
    assert digest(inputs) == before
    sudo.rename(sudo.with_name("sudo2"))
    assert len({before, without_bit, digest(inputs)}) == 3


def test_a_new_file_counts(inputs: Path) -> None:
    before = digest(inputs)
    (inputs / "guest" / "extra.py").write_text("")
    assert digest(inputs) != before


def test_variant_and_base_count(inputs: Path) -> None:
    (inputs / "packages.full.list").write_text("gimp\n")
    digests = {digest(inputs, variant, base) for variant in ("slim", "full") for base in image.BASES}
    assert len(digests) == 6


def test_tag_names_variant_and_digest() -> None:
    assert image_tag("slim", "auto") == f"rollbook/desktop:slim-{inputs_digest('slim', 'auto')[:12]}"


def test_every_module_of_guest_and_init_is_an_input() -> None:
    names = {path.relative_to(context_dir()).as_posix() for path in input_files(context_dir())}
    assert {"guest/app.py", "init/__main__.py", "packages.slim.list", "Dockerfile"} <= names
    assert not any("__pycache__" in name for name in names)


@pytest.mark.parametrize(("variant", "base"), [("huge", "auto"), ("slim", "tape"), ("../x", "pull")])
def test_unknown_variants_and_bases_are_refused(variant: str, base: str) -> None:
    with pytest.raises(InvalidInput, match=r"is none of"):
        inputs_digest(variant, base)


def test_a_tag_can_be_printed_without_an_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert image.main(["--print-tag", "--base", "pull"]) == 0
    assert capsys.readouterr().out == f"{image_tag('slim', 'pull')}\n"


def test_no_engine_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert image.main([]) == 1
    assert "no Docker engine answers" in capsys.readouterr().err


APT_GET = """#!/bin/sh
echo "bookworm main http://mirror.example/debian/"
echo "bookworm contrib http://contrib.example/debian/"
echo "bookworm main http://second.example/debian/"
echo "bookworm-security main http://mirror.example/debian-security/"
echo "nodistro main https://node.example/"
"""


def test_the_mirrors_of_this_machine_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "apt-get"
    program.write_text(APT_GET)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("ROLLBOOK_APT_MIRROR", raising=False)
    settings = image.apt_of_this_machine()
    assert settings.mirror == "http://mirror.example/debian"
    assert settings.security == "http://mirror.example/debian-security"


def test_without_apt_the_public_mirror_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ROLLBOOK_APT_MIRROR", raising=False)
    assert image.apt_of_this_machine() == image.AptSettings()


def test_a_password_in_a_mirror_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_APT_MIRROR", "https://me:secret@mirror.example/debian")
    with pytest.raises(ConfigError, match="ROLLBOOK_APT_MIRROR") as refusal:
        image.apt_of_this_machine()
    assert "secret" not in str(refusal.value)


def test_a_named_mirror_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLBOOK_APT_MIRROR", "http://127.0.0.1:3142/debian/")
    monkeypatch.setattr(image, "_apt_options", lambda: ())
    settings = image.apt_of_this_machine()
    assert settings.mirror == "http://127.0.0.1:3142/debian"
    assert settings.security == "http://127.0.0.1:3142/debian-security"
    assert settings.needs_host_network
    image.write_apt(settings, tmp_path / "apt")
    assert "3142" in (tmp_path / "apt" / "sources.list").read_text()
    assert (tmp_path / "apt" / "apt.conf").read_text() == ""


def test_apts_proxy_is_handed_to_debootstrap() -> None:
    options = ('Acquire::http::Proxy "http://proxy.example:3128/";', 'Acquire::https::Proxy "DIRECT";')
    settings = image.AptSettings(options=options)
    assert settings.proxy_environment() == {"http_proxy": "http://proxy.example:3128/"}
    assert not settings.needs_host_network
