"""The model server as a program, for demonstrations and for people: `python -m tests.doubles.model_server_main FILE`.

FILE is JSON: `{"<task id>": ["reply", {"content": "…", "fault": "rate_limited"}, …], "*": […]}`.
"""

import argparse
import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from tests.doubles.model_server import ModelServer, Reply


def read_script(path: Path) -> dict[str, list[Reply | str]]:
    """Replies by task id."""
    said: dict[str, list[Any]] = json.loads(path.read_text())
    return {task: [one if isinstance(one, str) else Reply(**one) for one in replies] for task, replies in said.items()}


async def serve(arguments: argparse.Namespace) -> None:
    """Until interrupted."""
    script = await asyncio.to_thread(read_script, arguments.script)
    key = arguments.api_key or None
    async with ModelServer(script, style=arguments.style, port=arguments.port, api_key=key) as server:
        print(f"{server.url} serves {server.model} as {server.style}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--style", choices=("vllm", "sglang", "openai"), default="vllm")
    parser.add_argument("--api-key", default="")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
