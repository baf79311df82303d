"""The documentation against the code: links lead somewhere, commands and spec keys exist."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from models.spec import BatchSpec, read_spec
from rollbook.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

COMMAND = re.compile(r"(?:^|\n|`|&& |\| )(?:\.venv/bin/)?rollbook ([a-z][a-z-]*[^\n`]*)")


def fenced(page: Path, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its path."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield path, command


COMMANDS = dict(leaves(typer.main.get_command(app)))
GROUPS = {path[0] for path in COMMANDS if len(path) == 2}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = {
                re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in path.read_text().splitlines()
                if line.startswith("#")
            }
            assert anchor in headings, f"{page.name}: {target}"


CODE = re.compile(r"`((?:rollbook|models|workflows|activities|migrations|tests|scripts|infra|bench)/[^`\s<>]*)`")
MODULE = re.compile(r"(?:python -m |`)((?:rollbook|models|workflows|activities|bench|tests)\.[a-z_.]+[a-z])")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    for path in CODE.findall(text):
        # an image `rollbook/desktop:<tag>` is not a path
        assert ":" in path or list(ROOT.glob(path.rstrip("/"))), f"{page.name}: {path}"
    for name in MODULE.findall(text):
        # a module, or an attribute of one
        places = [ROOT.joinpath(*parts) for parts in (name.split("."), name.split(".")[:-1])]
        assert any(place.is_dir() or place.with_suffix(".py").exists() for place in places), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_documentation_exist(page: Path) -> None:
    for line in COMMAND.findall(page.read_text()):
        try:
            words = shlex.split(line.split(" #")[0].split(" && ")[0].split(" > ")[0])
        except ValueError:  # prose with an apostrophe
            words = line.split()
        path = tuple(words[:2]) if words[0] in GROUPS else (words[0],)
        assert path in COMMANDS or (len(words) == 1 and words[0] in GROUPS), f"{page.name}: rollbook {line}"
        if path == ("bench",):
            continue
        known = {
            option for parameter in COMMANDS[path].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        known |= {"--help", "-h"}
        for word in words[len(path) :]:
            if re.fullmatch(r"--?[a-z][a-z-]*", word):
                assert word in known, f"{page.name}: rollbook {line}: {word}"


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "README.md":
            assert f"]({page.relative_to(ROOT / 'docs')})" in index, page


def test_every_command_and_option_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for path, command in COMMANDS.items():
        row = re.search(rf"^\| `{' '.join(path)}(?: [^`]*)?` \|.*$", text, re.MULTILINE)
        assert row, f"docs/reference/cli.md: {' '.join(path)}"
        for parameter in command.params:
            options = [option for option in (*parameter.opts, *parameter.secondary_opts) if option.startswith("-")]
            if options and "--help" not in options:
                assert any(option in row[0] for option in options), f"docs/reference/cli.md: {' '.join(path)} {options}"


def keys(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`limits.max_steps` and its default, for every key of a spec."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if hasattr(kind, "model_fields"):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.get_default(call_default_factory=True)


@pytest.mark.parametrize(("key", "default"), list(keys(BatchSpec)))
def test_every_key_of_a_spec_is_documented_with_its_default(key: str, default: Any) -> None:
    text = (ROOT / "docs" / "reference" / "batch-spec.md").read_text()
    row = re.search(rf"^\| `{re.escape(key)}` \|([^|]*)\|", text, re.MULTILINE)
    assert row, key
    if key in ("task_set", "policy") or key.startswith("tasks."):
        return
    shown = f"{default:g}" if isinstance(default, float) else json.dumps(default)
    assert row[1].strip() in (shown, str(default)), f"{key}: documented {row[1].strip()}, is {shown}"


def test_specs_in_the_documentation_are_valid() -> None:
    found = [json.loads(block) for page in PAGES for block in fenced(page, "json") if '"task_set"' in block]
    assert len(found) >= 2
    for spec in found:
        read_spec(spec)
