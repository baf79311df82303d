"""A guest server without a guest: it answers OSWorld's protocol and runs `/execute` on this machine.

Good for the journal's logic, which is files and processes. It cannot prove that a desktop does anything: no display, no
pyautogui, no user of its own, and no network whose connections break by themselves. tests/integration does that, and
tests/integration/test_guest_contract.py compares its words with those of the real server.
"""

import asyncio
import json
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path
from typing import Any

import httpx

from rollbook.desktop.client import GuestClient, Retry
from rollbook.guest.http import Endpoint


def refusal(message: str, status: int) -> tuple[int, bytes]:
    """Status and body of an error."""
    return status, json.dumps({"status": "error", "message": message, "error": message}).encode()


@dataclass
class LocalGuest(httpx.AsyncBaseTransport):
    """Faults are armed from outside: `lose_replies` runs the next requests and drops their answers, `dead` answers
    nothing any more, `limit_s` is the guest's own limit on a command."""

    lose_replies: int = 0
    refuse_requests: int = 0
    dead: bool = False
    limit_s: float = 120.0
    requests: int = 0
    processes: set[asyncio.subprocess.Process] = field(default_factory=set)
    images: list[tuple[int, bytes]] = field(default_factory=list)
    """Answers to `GET /screenshot`, in order; the last one stays."""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def client(self) -> GuestClient:
        """A client of this guest that does not wait long."""
        return GuestClient(Endpoint("http://guest"), retry=Retry((0.0, 0.0)), transport=self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.dead:
            raise httpx.ConnectError("connection refused", request=request)
        if self.refuse_requests > 0:
            self.refuse_requests -= 1
            raise httpx.ConnectError("connection refused", request=request)
        lose = self.lose_replies > 0
        self.lose_replies -= lose
        status, content = await self._answer(request)
        if lose or self.dead:
            raise httpx.ReadError("connection reset", request=request)
        return httpx.Response(status, content=content, request=request)

    async def _answer(self, request: httpx.Request) -> tuple[int, bytes]:
        body = await request.aread()
        path = request.url.path
        if path in self.answers:
            return self.answers[path]
        if path == "/execute":
            try:
                return await self._execute(json.loads(body)["command"])
            except (ValueError, TypeError):
                return refusal("the request body must be a JSON object", 400)
        if path == "/setup/upload":
            return self._upload(request.headers["content-type"], body)
        if path == "/screenshot" and self.images:
            return self.images.pop(0) if len(self.images) > 1 else self.images[0]
        return refusal("not found", 404)

    async def _execute(self, command: list[str]) -> tuple[int, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        except OSError as error:
            return refusal(str(error), 500)
        self.processes.add(process)
        try:
            output, errors = await asyncio.wait_for(process.communicate(), self.limit_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            return refusal(f"the command was killed: it timed out after {self.limit_s:g} seconds", 500)
        finally:
            self.processes.discard(process)
        answer = {
            "status": "success",
            "output": output.decode(errors="replace"),
            "error": errors.decode(errors="replace"),
            "returncode": process.returncode,
            "out_of_memory": False,
        }
        return 200, json.dumps(answer).encode()

    @staticmethod
    def _upload(content_type: str, body: bytes) -> tuple[int, bytes]:
        form = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
        parts = [part for part in form.walk() if part is not form]
        fields: dict[Any, Any] = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parts
        }
        Path(fields["file_path"].decode()).write_bytes(fields["file_data"])
        return 200, b"File Uploaded"
