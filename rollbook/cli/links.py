"""Links into the Temporal UI and the artifact server. They carry no password."""

from dataclasses import dataclass
from urllib.parse import quote

from models import attributes
from rollbook.config.connections import artifact_base_url, temporal_connect_config, temporal_ui_url
from rollbook.config.settings import Settings


@dataclass(frozen=True)
class Links:
    """Where people can look; empty where the local stack is not up."""

    ui: str | None = None
    artifacts: str | None = None
    namespace: str = "default"

    @classmethod
    def of(cls, settings: Settings) -> "Links":
        ui = temporal_ui_url(settings)
        namespace = temporal_connect_config(settings).get("namespace", "default") if ui else "default"
        return cls(ui, artifact_base_url(settings), namespace)

    def workflow(self, workflow_id: str) -> str | None:
        """A batch or an episode in the Temporal UI."""
        return self.ui and f"{self.ui}/namespaces/{self.namespace}/workflows/{quote(workflow_id, safe='')}"

    def episodes(self, batch_id: str) -> str | None:
        """The list of a batch's episodes in the Temporal UI."""
        wanted = quote(f'{attributes.BATCH}="{batch_id}"', safe="")
        return self.ui and f"{self.ui}/namespaces/{self.namespace}/workflows?query={wanted}"

    def artifact(self, sha256: str | None) -> str | None:
        """The bytes of an artifact."""
        return f"{self.artifacts}/artifacts/{sha256}" if self.artifacts and sha256 else None
