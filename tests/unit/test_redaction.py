"""Redaction by value: every form a secret takes, and what must stay as it is."""

import base64
import html
import json
import logging
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import SecretStr

from rollbook import redaction
from rollbook.redaction import MARK, SECRETS, RedactingFilter, SecretRegistry, redact, register_settings
from rollbook.settings import load_settings

ODD = 'p@ss "w\\rd/+=é&%20'


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "SECRETS", SecretRegistry())


def registry(*values: str) -> SecretRegistry:
    found = SecretRegistry()
    for value in values:
        assert found.add(value)
    return found


@pytest.mark.parametrize(
    "form",
    [
        ODD,
        quote(ODD, safe=""),
        quote(ODD),
        quote_plus(ODD),
        repr(ODD)[1:-1],
        html.escape(ODD),
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(ODD)[1:-1])[1:-1],
    ],
)
def test_every_way_of_writing_it(form: str) -> None:
    found = registry(ODD)
    assert found.text(f"a{form}b") == f"a{MARK}b"
    assert found.data(f"a{form}b".encode()) == f"a{MARK}b".encode()


@given(st.text(min_size=8, max_size=40), st.binary(max_size=8), st.binary(max_size=8))
def test_inside_base64_at_any_place(secret: str, before: bytes, after: bytes) -> None:
    assume(secret.strip() == secret)
    assume(len(secret.encode("utf-8", "ignore")) == len(secret.encode("utf-8", "surrogatepass")))
    found = SecretRegistry()
    assume(found.add(secret))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + secret.encode() + after).decode()
        assert MARK in found.text(text)


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
