"""Print the size and shape of the code: lines, files, modules with exactly one importer, share of comment lines.

Usage: python scripts/structure.py [CHECKOUT]
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

PACKAGES = ("rollbook", "models", "workflows", "activities", "migrations", "infra")


def modules(root: Path) -> dict[str, Path]:
    """Dotted name of every product module."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    paths.append(root / "worker_main.py")
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in paths}


def imported_by(name: str, tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Modules among `known` that a module imports, inside functions too."""
    package = name.split(".")[:-1]
    targets: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            targets |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return targets & known.keys() - {name}


def comment_lines(source: str) -> int:
    """Lines that hold a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def main(root: Path) -> None:
    """Print one line per figure."""
    known = modules(root)
    importers: dict[str, set[str]] = defaultdict(set)
    lines = comments = 0
    for name, path in known.items():
        source = path.read_text()
        lines, comments = lines + source.count("\n"), comments + comment_lines(source)
        for target in imported_by(name, ast.parse(source), known):
            importers[target].add(name)
    rollbook = [name for name in known if name.startswith("rollbook.") and not name.endswith("__init__")]
    single = [name for name in rollbook if len(importers[name]) == 1]
    rollbook_lines = sum(known[name].read_text().count("\n") for name in known if name.startswith("rollbook"))
    tests = sorted((root / "tests").rglob("*.py"))
    print(f"product: {len(known)} files, {lines} lines, {100 * comments / lines:.1f} % comment lines")
    print(f"rollbook/: {len(rollbook)} modules, {rollbook_lines} lines")
    print(f"one importer: {len(single)} of {len(rollbook)} ({100 * len(single) / len(rollbook):.0f} %)")
    print(f"tests: {len(tests)} files, {sum(path.read_text().count(chr(10)) for path in tests)} lines")
    if "-v" in sys.argv:
        print("\n".join(single))


if __name__ == "__main__":
    main(Path(next((word for word in sys.argv[1:] if not word.startswith("-")), ".")))
