"""Model episodes for tests: the model server's endpoint file, specs, and what the ledger holds of an episode."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rollbook.ledger.reader import RecordedAttempt
from tests.doubles.model_server import Call, ModelServer
from tests.support.system import System, null_spec, running_system, system_settings

KEY = "mk-0123456789abcdef"


def endpoints_file(directory: Path, servers: dict[str, ModelServer]) -> Path:
    """A profile per server, readable by us only."""
    path = directory / "endpoints.toml"
    tables = [
        f'[endpoints.{name}]\nbase_url = "{server.url}"\napi = "{server.style}"\napi_key = "{KEY}"\n'
        for name, server in servers.items()
    ]
    path.write_text("\n".join(tables))
    path.chmod(0o600)
    return path


def model_policy(**changes: Any) -> dict[str, Any]:
    """A policy that asks the test server."""
    return {"kind": "openai", "endpoint": "test", "model": "double-vl", **changes}


def model_spec(task_set: str, policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Model episodes on the do-nothing desktop."""
    return null_spec(task_set, policy=model_policy(**(policy or {})), **changes)


def code(actions: str, thought: str = "I see the screen.", action: str = "Act.") -> str:
    """A reply in the sections of pyautogui-code-v1."""
    return f"## Thought:\n{thought}\n\n## Action:\n{action}\n\n## Code:\n```python\n{actions}\n```"


DONE = (
    '## Thought:\nAll is done.\n\n## Action:\nFinish.\n\n## Code:\n```python\ncomputer.terminate(status="success")\n```'
)


class Scenario:
    """The model's answers; a test sets its own."""

    def __init__(self) -> None:
        self.answer: Any = lambda call: DONE
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        return self.answer(call)


@asynccontextmanager
async def model_system(
    directory: Path, database_url: str, temporal_address: str, deployment_id: str, said: Scenario, **settings: Any
) -> AsyncIterator[System]:
    """A system whose endpoint `test` is the scenario."""
    await asyncio.to_thread(directory.mkdir)
    async with ModelServer(said, api_key=KEY) as server:
        found = system_settings(
            directory,
            database_url,
            deployment_id,
            endpoints_file=endpoints_file(directory, {"test": server}),
            **settings,
        )
        async with running_system(found, temporal_address) as system:
            yield system


def click_until(last: int) -> Any:
    """Another click in every step, then done."""
    return lambda call: DONE if call.step > last else code(f"pyautogui.click(0.{call.step:02d}, 0.5)")


async def recorded(system: System, batch_id: str) -> list[RecordedAttempt]:
    """Every rollout of a batch."""
    return [await system.ledger.recorded(row["rollout_key"]) for row in await system.ledger.rollouts_of(batch_id)]
