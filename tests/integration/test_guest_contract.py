"""Answers of a guest server to commands: the desktop image and the doubles of other tests use the same words."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import docker
import httpx
import pytest
from aiohttp import web

from rollbook.desktop.client import GuestClient
from rollbook.guest.http import Endpoint
from tests.doubles import http_guest
from tests.doubles.http_guest import HttpGuest
from tests.doubles.local_guest import LocalGuest
from tests.support.desktop import desktops

LIMIT_S = 1.0
LONG = 3_000_000


@dataclass(frozen=True)
class Case:
    """A request to `/execute`, its answer, and the answer that is set at the double which runs nothing."""

    command: Any
    status: int
    answer: dict[str, Any]
    canned: Any


def ended(output: str = "", error: str = "", returncode: int = 0) -> dict[str, Any]:
    return {
        "status": "success",
        "output": output,
        "error": error,
        "returncode": returncode,
        "out_of_memory": False,
    }


def failed(message: str) -> dict[str, Any]:
    return {"status": "error", "message": message, "error": message}


CASES = {
    "ends with a code": Case(
        ["sh", "-c", "echo out; echo err >&2; exit 3"],
        200,
        ended("out\n", "err\n", 3),
        http_guest.command("out\n", "err\n", 3),
    ),
    "kills itself": Case(["sh", "-c", "kill -9 $$"], 200, ended(returncode=-9), http_guest.command("", returncode=-9)),
    "is not UTF-8": Case(
        ["printf", "\\377x"], 200, ended("\N{REPLACEMENT CHARACTER}x"), http_guest.command("\N{REPLACEMENT CHARACTER}x")
    ),
    "prints megabytes": Case(
        ["sh", "-c", f"head -c {LONG} /dev/zero | tr '\\0' x"],
        200,
        ended("x" * LONG),
        http_guest.command("x" * LONG),
    ),
    "does not exist": Case(
        ["/nowhere/program"],
        500,
        failed("[Errno 2] No such file or directory: '/nowhere/program'"),
        http_guest.no_program("/nowhere/program"),
    ),
    "runs past the limit": Case(
        ["sleep", "60"],
        500,
        failed(f"the command was killed: it timed out after {LIMIT_S:g} seconds"),
        http_guest.timed_out(LIMIT_S),
    ),
}


@dataclass
class Guest:
    """One guest server: the client of our product, and bare HTTP; `prepare` sets the answer of a double."""

    client: GuestClient
    http: httpx.AsyncClient
    double: HttpGuest | None = None

    def prepare(self, canned: Any) -> None:
        if self.double is not None:
            self.double.routes["/execute"] = canned


@pytest.fixture(scope="module", params=["real", "local double", "HTTP double"])
async def guest(
    request: pytest.FixtureRequest, docker_client: docker.DockerClient, desktop_image: str, deployment_id: str
) -> AsyncIterator[Guest]:
    if request.param == "local double":
        local = LocalGuest(limit_s=LIMIT_S)
        async with local.client() as client, httpx.AsyncClient(transport=local, base_url="http://guest") as http:
            yield Guest(client, http)
    elif request.param == "HTTP double":
        async with (
            HttpGuest() as double,
            GuestClient(Endpoint(double.url)) as client,
            httpx.AsyncClient(base_url=double.url, trust_env=False) as http,
        ):
            yield Guest(client, http, double)
    else:
        async with desktops(docker_client, desktop_image, deployment_id) as start:
            desktop = await start(environment={"ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S": f"{LIMIT_S:g}"})
            async with GuestClient(Endpoint(str(desktop.http.base_url))) as client:
                yield Guest(client, desktop.http)


@pytest.mark.parametrize("name", CASES)
async def test_what_a_command_is_answered(guest: Guest, name: str) -> None:
    case = CASES[name]
    guest.prepare(case.canned)
    reply = await guest.http.post("/execute", json={"command": case.command, "shell": False})
    assert (reply.status_code, reply.json()) == (case.status, case.answer)
    result = await guest.client.execute(case.command)
    assert (result.ok, result.timed_out) == (case.status == 200, name == "runs past the limit")
    assert (result.output, result.returncode) == (case.answer.get("output", ""), case.answer.get("returncode"))
    assert result.error == case.answer["error"]


async def test_a_body_that_is_not_json(guest: Guest) -> None:
    guest.prepare(http_guest.status(400, failed("the request body must be a JSON object")))
    reply = await guest.http.post("/execute", content=b"{")
    assert (reply.status_code, reply.json()) == (400, failed("the request body must be a JSON object"))


async def test_a_path_that_does_not_exist(guest: Guest) -> None:
    reply = await guest.http.get("/nowhere")
    assert (reply.status_code, reply.json().keys()) == (404, failed("").keys())


async def test_a_program_quoting_the_words_is_not_at_its_limit(guest: Guest) -> None:
    """The words are those of the guest server, at the end of its message; a program's name may hold them too."""
    name = "/nowhere/timed out after 120 seconds/x"
    guest.prepare(http_guest.no_program(name))
    assert not (await guest.client.execute([name])).timed_out


async def test_the_stock_servers_words_are_known() -> None:
    """OSWorld's server answers with the exception of `subprocess.run`, which quotes the command."""
    words = f"Command '{['python', '-c', 'x']}' timed out after 120 seconds"

    async def stock(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=500, text=json.dumps({"status": "error", "message": words}))

    async with HttpGuest(routes={"/execute": stock}) as double, GuestClient(Endpoint(double.url)) as client:
        assert (await client.execute(["x"])).timed_out
