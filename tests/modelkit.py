"""Model episodes for tests: the model server's endpoint file, specs, and what the ledger holds of an episode."""

from pathlib import Path
from typing import Any

from rollbook.ledger.recorded import Recorded
from tests.doubles.model_server import ModelServer
from tests.system import System, null_spec

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


async def recorded(system: System, batch_id: str) -> list[Recorded]:
    """Every rollout of a batch."""
    return [await system.ledger.recorded(row["rollout_key"]) for row in await system.ledger.rollouts_of(batch_id)]
