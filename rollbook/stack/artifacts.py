"""The artifact server as a child process."""

import sys
from collections.abc import Mapping
from pathlib import Path

from rollbook.config.settings import PROJECT_ROOT
from rollbook.stack.children import Child, Command
from rollbook.stack.ports import HOST, listens


class ArtifactServer(Child):
    """`rollbook.stack.artifact_server` for the store at `store_url`."""

    stop_grace_s = 5.0

    def __init__(self, store_url: str, log: Path, port: int, env: Mapping[str, str] | None = None) -> None:
        super().__init__("artifacts", log, env)
        self.store_url = store_url
        self.port = port

    @property
    def base_url(self) -> str:
        """Links are `<base_url>/artifacts/<sha256>`."""
        return f"http://{HOST}:{self.port}"

    def command(self) -> Command:
        module = "rollbook.stack.artifact_server"
        argv = (sys.executable, "-m", module, "--store", self.store_url, "--port", str(self.port))
        return Command(argv, cwd=PROJECT_ROOT)

    async def probe(self) -> bool:
        return self.ref is not None and listens(self.ref.pid, self.port)
