"""Redaction by value: every form a secret takes, and what must stay as it is."""

import base64
import json
import logging
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from rollbook import redaction
from rollbook.config.settings import PROJECT_ROOT, load_settings
from rollbook.redaction import (
    MARK,
    SECRETS,
    RedactingFilter,
    SecretRegistry,
    redact,
    redact_head,
    redact_tail,
    register_settings,
)
from tests.support.spellings import in_base64, nested, usual, usual_in_base64

ODD = 'p@ss "w\\rd/+=é&%20'


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "SECRETS", SecretRegistry())


def registry(*values: str) -> SecretRegistry:
    found = SecretRegistry()
    for value in values:
        assert found.add(value)
    return found


SHORT = "pa$s9"
SECRETS_OF_MANY_SHAPES = (
    ODD,
    SHORT,
    'mk/"right\\key+=&%41 {}',
    "sk-wrong_key-$(id);--'x",
    "vN<c>1&7",
    "ends-with\\",
    "пароль-секрет",
    "é😀/x/日本",
    "$$;;--&&",
    "/fff/ffff",  # a hexadecimal digit comes before the letters
    "abc1",
    "sk-proj-0123456789abcdefABCDEF",
)
AROUND = (("", ""), ("x ", " y"), ('{"k": "', '", "z": 1}'), ("line\\n", "\\nline"), ("é=", "\n"))


@pytest.mark.parametrize("secret", SECRETS_OF_MANY_SHAPES)
def test_every_usual_spelling(secret: str) -> None:
    secrets = registry(secret)
    for name, form in usual(secret).items():
        for before, after in AROUND:
            written, cleaned = before + form + after, secrets.text(before + form + after)
            # Where the secret ends with a backslash, one of the text that follows may be gone as well.
            assert cleaned in {before + MARK + after, before + MARK + after.lstrip("\\")}, (name, written, cleaned)
            assert secrets.data(written.encode()) == cleaned.encode()
            assert secrets.text(cleaned) == cleaned


@pytest.mark.parametrize("secret", SECRETS_OF_MANY_SHAPES)
def test_every_usual_spelling_inside_base64(secret: str) -> None:
    secrets = registry(secret)
    for written in usual_in_base64(secret):
        for before, after in (*AROUND, ("x ", "\nword")):
            assert MARK in secrets.text(before + written + after), (written, after)


def test_what_is_left_of_base64_tells_nothing() -> None:
    for lead in ("user:", "use:", "u:"):
        written = base64.b64encode(f"{lead}{SHORT}!and so on".encode()).decode()
        before, after = registry(SHORT).text(written).split(MARK)
        assert written.startswith(before)
        assert written.endswith(after)
        assert 8 * len(lead) - 6 <= 6 * len(before) <= 8 * len(lead), "not one bit of it stands before"
        assert 6 * (len(written) - len(after)) >= 8 * len(lead + SHORT)


PROSE = (
    "The hunters' 2 hunter cabins; hunter2 hunter 2hunter, Hunter2Hunter2 is written 68756e746572 or aHVudGVy.",
    json.dumps(
        {"path": "C:\\pa\\s9\\n", "price": "pa$ s9", "s": "spa$s9x, pa$s90, pas9, PA$S9", "url": "/a%20b?c=%2f"}
    ),
    "<p>pa&amp;s9 pa&#36; s9</p> 7061247339616263 cGFzczk= pa%24%20s9 pa\\$ s9",
    base64.encodebytes(b"spa$s9x and pa$s90 and hunter2 hunter2, neither of them alone. " * 3).decode(),
    "deadbeef" * 40,
    "\\\\\\n" * 50 + "&amp;" * 50 + "%25" * 50,
)


@pytest.mark.parametrize("text", PROSE)
def test_what_only_looks_like_it_stays(text: str) -> None:
    found = registry(SHORT, "hunter2hunter2")
    assert found.text(text) == text
    assert found.data(text.encode()) == text.encode()


def test_pictures_and_numbers_stay() -> None:
    found = registry(SHORT, "vN<c>1&7", "hunter2hunter2", "0123abcd")
    noise = random.Random(5).randbytes(300_000)
    for text in (base64.b64encode(noise).decode(), noise.hex(), base64.encodebytes(noise).decode()):
        assert found.text(text) == text


def test_json_stays_json() -> None:
    found = registry(*SECRETS_OF_MANY_SHAPES)
    for secret in SECRETS_OF_MANY_SHAPES:
        for value in (
            f"a{secret}",
            f'"{secret}"',
            f"\\{secret}\\",
            f"é {secret}\n",
            in_base64(f"k:{secret}")["base64"],
        ):
            for depth in range(3):
                document = json.dumps({"k": [nested(value, depth), 1]}).encode()
                assert json.loads(found.data(document))["k"][1] == 1


@settings(deadline=None)
@given(st.text(min_size=8, max_size=40), st.binary(max_size=8), st.binary(max_size=8))
def test_inside_base64_at_any_place(secret: str, before: bytes, after: bytes) -> None:
    assume(secret.strip() == secret)
    assume(len(secret.encode("utf-8", "ignore")) == len(secret.encode("utf-8", "surrogatepass")))
    found = SecretRegistry()
    assume(found.add(secret))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + secret.encode() + after).decode()
        assert MARK in found.text(text)


@settings(deadline=None)
@given(st.text(max_size=60), st.text(min_size=12, max_size=30))
def test_afterwards_it_is_gone(around: str, secret: str) -> None:
    found = SecretRegistry()
    assume(secret.isprintable() and found.add(secret))
    assert secret.strip() not in found.text(f"{around}{secret}{around}{json.dumps(secret)}").replace(MARK, "\0")


def test_short_secrets_are_replaced_as_whole_words_only() -> None:
    found = registry("abc12")
    assert found.text("abc12, xabc12, abc123, (abc12)") == f"{MARK}, xabc12, abc123, ({MARK})"


@pytest.mark.parametrize("value", ["", "  ", "a", "abc", "EMPTY", "password", "None", "redacted"])
def test_what_protects_nothing_is_not_replaced(value: str) -> None:
    assert not SecretRegistry().add(value)


def test_a_secret_within_a_secret_goes_whole() -> None:
    assert registry("abcdefgh", "abcdefghijkl").text("x abcdefghijkl y") == f"x {MARK} y"


def test_twice_is_once() -> None:
    found = registry("abc12", "long-secret-value")
    once = found.text("abc12long-secret-value abc12x")
    assert once == f"{MARK}{MARK} abc12x"
    assert found.text(once) == once
    assert found.data(b"abc12long-secret-value abc12x") == once.encode()


def test_values_keep_their_shape() -> None:
    found = registry("hunter2hunter2")
    value = {"k hunter2hunter2": ["hunter2hunter2", 1, None, True, ("x",)]}
    assert found.value(value) == {f"k {MARK}": [MARK, 1, None, True, ["x"]]}


def test_settings_bring_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_0123456789")
    settings = load_settings(
        database_url=SecretStr("postgresql://writer:p%40ss-phrase@db/ledger"), vnc_password=SecretStr("vnc-Word")
    )
    register_settings(settings)
    said = redaction.redact("p@ss-phrase p%40ss-phrase vnc-Word e2b_0123456789 writer ledger")
    assert said == f"{MARK} {MARK} {MARK} {MARK} writer ledger"


def test_log_records_lose_secrets_in_arguments_and_tracebacks() -> None:
    redaction.SECRETS.add("hunter2hunter2")
    try:
        raise RuntimeError("cannot log in with hunter2hunter2")
    except RuntimeError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "p", 1, "key %s", ("hunter2hunter2",), trace)
    assert RedactingFilter().filter(record)
    text = logging.Formatter().format(record)
    assert "hunter2" not in text
    assert f"key {MARK}" in text
    assert f"cannot log in with {MARK}" in text


def test_the_registry_of_the_process_is_the_one_that_is_asked() -> None:
    redaction.SECRETS.add("hunter2hunter2")
    assert redact("hunter2hunter2") == MARK
    assert SECRETS.text("hunter2hunter2") == "hunter2hunter2"  # the one imported before the fixture took its place


@pytest.mark.parametrize("cut", [redact_head, redact_tail])
def test_no_part_of_a_secret_is_left_by_a_cut(cut: Callable[[str | bytes, int], str]) -> None:
    key = "sk-0123456789abcdefghij"
    redaction.SECRETS.add(key)
    for text in (key * 3, f"..{key}..{key}.."):
        for limit in range(1, 60):
            assert not re.search("sk|[0-9]|ghij", cut(text, limit)), (text, limit)
            assert cut(text.encode(), limit) == cut(text, limit)


TEXT_CUT = re.compile(r"(?<!\\)\[(:\d{3,}|-\d{3,}:|:?-?[A-Z_]*(?:CHARS|CHARACTERS|WORDS)[A-Z_]*:?)\]|:\.\d{3,}\}")
CLEAN_BEFORE = {
    "workflows/": "failures are redacted when activities raise them",
    "models/": "results of other programs, redacted when they are stored",
    "rollbook/desktop/inside/": "runs in the guest, which is given no secret",
    "rollbook/osworld/inside/": "runs in the evaluator's process, which is given no secret",
    "rollbook/temporal/plugin.py": "cuts what it has redacted",
    "rollbook/policies/": "names, and actions of a reply that is read after redaction",
    "rollbook/stack/artifact_server.py": "recognizes a file by its first bytes",
    "rollbook/evidence/verify.py": "compares records, which hold no secret",
    "rollbook/ledger/": "redacted as JSON first",
}


def test_texts_are_cut_by_the_functions_that_redact_first() -> None:
    """A slice of a hundred or more characters is one of a text that may hold a secret."""
    found = [
        f"{name}:{number}: {line.strip()}"
        for package in ("rollbook", "activities", "workflows", "models")
        for path in sorted((PROJECT_ROOT / package).rglob("*.py"))
        if not (name := path.relative_to(PROJECT_ROOT).as_posix()).startswith(tuple(CLEAN_BEFORE))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if TEXT_CUT.search(line)
    ]
    assert found == []
