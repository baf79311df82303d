"""The two kinds of model: what people write, and what the system carries."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Input(BaseModel):
    """Written by people: unknown keys are refused, so that a typing error is found."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Wire(BaseModel):
    """Carried in Temporal histories: unknown keys are ignored, so that older code can read newer records."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest, 64 lowercase hexadecimal digits."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)]
"""A name that is safe in workflow ids, labels and paths."""
