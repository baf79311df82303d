"""Check the wording of docstrings, comments, messages, SQL and Markdown (part of `make lint`).

Python: docstrings and comments everywhere, string literals that read as text outside tests/ and bench/ (there they are
data). SQL and Markdown are read as text. Prints `file:line: "words": suggestion` for each finding and exits 1;
`--report` prints counts for each package and exits 0. A line that ends with `wording: ok` is skipped.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".sql", ".md"}
SKIPPED = {".git", ".venv", ".venv-osworld", "build", "dist", "node_modules"}
STRINGS_ARE_DATA = ("tests/", "bench/")

BANNED = {
    r"(?<!user\s)(?<!`)nobody": "no one, or name the actor",
    r"somebody|anybody|whoever": "name the actor",
    r"wherever": "in every place where, or name the places",
    r"for good": "permanently",
    r"mend(?:s|ed|ing)?": "fix",
    r"told|tells": "report, print, show, given",
    r"held against": "compared with",
    r"bells?": "notification",
    r"stor(?:y|ies)": "state, sequence",
    r"of ours": "of Rollbook",
    r"by no (?:way|means)|no way at all": "never",
    r"(?<!there\s)(?:is|are|was|were) no(?! longer\b| (?:more|fewer|less|later)\b)": (
        '"is not a …", or "there is no …"'
    ),
    r"stands(?! for\b)|stood|stand still": "is, remains, is suspended",
    r"beware": "warning",
    r"(?:bears?|bore|borne) out": "support",
    r"half a character": "an unpaired surrogate",
    r"in disguise|dressed": "say what it is",
    r"the impatient|to mend it": "plain imperative",
    r"who wants": "to …, use …",
    r"no word of": "unknown",
    r"says nothing": "has no effect, contains nothing",
    r"what is to be": "name it",
}
OUTSIDE = {
    r"§": "name the rule, or link a page of docs/",
    r"DESIGN\.md|(?:temporal|osworld|e2b)[- ]notes": "not in this repository: state the rule",
}
# One group for each suggestion; a phrase may be broken over two lines.
INSIDE = "|".join(f"({words})" for words in BANNED).replace(" ", r"\s+")
WORDS = re.compile(rf"(?<![\w-])(?:{INSIDE})(?![\w-])|{'|'.join(f'({words})' for words in OUTSIDE)}", re.IGNORECASE)
HINTS = [*BANNED.values(), *OUTSIDE.values()]
OPENING = re.compile(r"\s*(?:What|Whether|Who|Whom|Whose|Where|How|When|Why)\b")

Text = tuple[int, str, bool]
"""First line, text, and whether it is a docstring."""


def python_texts(source: str, strings: bool) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        # A literal without a space is a name or a key, not a message.
        if id(node) in docstrings or (strings and " " in node.value.strip()):
            yield node.lineno, node.value, id(node) in docstrings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def problems(name: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Line, words and suggestion of each finding in a file called `name` (relative to the repository)."""
    texts: Iterable[Text] = [(1, source, False)]
    if name.endswith(".py"):
        texts = python_texts(source, not name.startswith(STRINGS_ARE_DATA))
    lines = source.splitlines()
    for start, text, docstring in texts:
        if docstring and (match := OPENING.match(text)):
            yield start, match[0].strip(), "begin a docstring with an imperative verb or a noun phrase"
        for match in WORDS.finditer(text):
            line = start + text.count("\n", 0, match.start())
            if match.lastindex and not lines[line - 1].rstrip(" ->").endswith("wording: ok"):
                yield line, " ".join(match[0].split()), HINTS[match.lastindex - 1]


def files(paths: list[str]) -> Iterator[Path]:
    for top in [Path(path).resolve() for path in paths] or [ROOT]:
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            # This file is left out because it lists the banned words.
            skipped = path == Path(__file__).resolve() or SKIPPED.intersection(path.relative_to(ROOT).parts)
            if path.suffix in SUFFIXES and not skipped:
                yield path


def main(arguments: list[str]) -> int:
    report = "--report" in arguments
    counts: Counter[tuple[str, str]] = Counter()
    for path in files([argument for argument in arguments if argument != "--report"]):
        name = path.relative_to(ROOT).as_posix()
        for line, words, hint in sorted(problems(name, path.read_text(encoding="utf-8"))):
            counts["/".join(name.split("/")[:2]), words.lower()] += 1
            if not report:
                print(f'{name}:{line}: "{words}": {hint}')
    if report:
        for (package, words), count in sorted(counts.items()):
            print(f"{count:5} {package}: {words}")
        print(f"{sum(counts.values()):5} in all")
    return int(bool(counts) and not report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
