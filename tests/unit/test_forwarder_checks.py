"""Which replies of the guest's server have the form of their route, and which canonical code would swallow."""

import gzip
import json
import zlib

import pytest

from rollbook.guest.messages import BODY_LIMIT, JSON_ROUTES, ReplyCheck


def problem(path: str, body: bytes, status: int = 200, encoding: str = "", port: int = 5000) -> str:
    check = ReplyCheck(port, path, status, encoding)
    for start in range(0, len(body), 70_000):
        check.feed(body[start : start + 70_000])
    return check.problem()


def test_whole_answers_have_no_problem() -> None:
    for path, key in JSON_ROUTES.items():
        assert problem(path, json.dumps({key or "status": None}).encode()) == ""
    packed = json.dumps({"output": "hello"}).encode()
    assert problem("/terminal", gzip.compress(packed, mtime=0), encoding="gzip") == ""
    assert problem("/terminal", zlib.compress(packed), encoding="deflate") == ""


@pytest.mark.parametrize("path", sorted(JSON_ROUTES))
@pytest.mark.parametrize(
    "body",
    [b'{"output": "hel', b"<html>the sandbox is resuming</html>", b"", b"[]", b"null", b"[" * 200_000, b"\xff{}"],
)
def test_an_answer_that_is_no_whole_object_is_told(path: str, body: bytes) -> None:
    assert problem(path, body)


@pytest.mark.parametrize("path", sorted(path for path, key in JSON_ROUTES.items() if key))
def test_an_object_of_somebody_else_is_told(path: str) -> None:
    assert "JSON without" in problem(path, b'{"status": "resuming"}')


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b'{"output": "hello"}', mtime=0)[:-12], "gzip"),
        (b'{"output": "hello"}', "gzip"),
        (b'{"output": "hello"}', "br"),
        (gzip.compress(b'{"output": "hel', mtime=0), "gzip"),
    ],
)
def test_packed_answers_are_looked_into(body: bytes, encoding: str) -> None:
    assert problem("/terminal", body, encoding=encoding)


def test_of_a_long_answer_the_ends_are_looked_at() -> None:
    long = json.dumps({"output": "x" * (BODY_LIMIT + 100_000)}).encode()
    assert problem("/execute", long + b"\n") == ""
    assert problem("/execute", long[:-1])
    assert problem("/execute", b"<" + long)
    assert problem("/execute", gzip.compress(long, mtime=0), encoding="gzip") == ""


def test_other_routes_ports_and_statuses_are_not_judged() -> None:
    assert problem("/file", b'{"output": "hel') == ""
    assert problem("/setup/launch", b"launched successfully") == ""
    assert problem("/terminal", b"no", status=404) == ""
    assert problem("/terminal", b"no", port=8080) == ""
    assert "status 204" in problem("/file", b"", status=204)
    assert problem("/file", b"", status=206, port=8080) == ""
