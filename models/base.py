"""The two kinds of model: input that people write, and messages that the system carries."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Input(BaseModel):
    """Written by people: unknown keys and wrong types are refused, so that typing errors are found."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:
        """Read 4.0 as 4, as tctl and other Go programs write it; `true` and `"4"` are not numbers."""
        if not isinstance(data, dict):
            return data
        return {key: int(value) if _is_whole(value) else value for key, value in data.items()}


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


class Wire(BaseModel):
    """Carried in Temporal histories: unknown keys are ignored, so that older code can read newer records."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest, 64 lowercase hexadecimal digits."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)]
"""A name that is safe in workflow ids, labels and paths."""
