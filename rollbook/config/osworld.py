"""Settings of the evaluator: where its environment lives and how strictly it is locked in.

They are a part of `rollbook.config.settings.Settings`, so that the local stack hands them to its workers like all
others. The evaluator's own code reads only these.
"""

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rollbook.errors import ConfigError

PROJECT_ROOT = Path(__file__).resolve().parents[2]

Isolation = Literal["auto", "bwrap", "none"]


def default_osworld_venv() -> Path:
    """`.venv-osworld` in a checkout; inside the environment that Rollbook was installed into otherwise."""
    # Not beside the package: site-packages belongs to pip.
    checkout = (PROJECT_ROOT / "pyproject.toml").is_file()
    return PROJECT_ROOT / ".venv-osworld" if checkout else Path(sys.prefix) / "osworld-venv"


class EvaluatorSettings(BaseSettings):
    """Read from `ROLLBOOK_*` variables and `.env`, like all settings."""

    model_config = SettingsConfigDict(
        env_prefix="ROLLBOOK_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    osworld_venv: Path = Field(default_factory=default_osworld_venv)
    """Directory of the evaluator's own Python environment."""
    evaluator_isolation: Isolation = "auto"
    """`bwrap`: refuse to evaluate without bubblewrap. `auto`: use it where it works, and refuse without it as
    root. `none`: never."""
    evaluator_memory_bytes: int = Field(default=4 * 2**30, ge=2**29)
    """Memory that one evaluation (its process and what that starts) may hold before it is ended as an error."""
    download_bytes: int = Field(default=2 * 2**30, ge=1)
    """Size that one file of a task may have when it is downloaded, bytes."""
    download_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that one file of a task may take to download."""
    download_private: bool = False
    """Allow tasks to download from this machine and from private networks (loopback, link-local, RFC 1918, …)."""

    @field_validator("osworld_venv")
    @classmethod
    def _osworld_venv(cls, value: Path) -> Path:
        return Path(os.path.abspath(value.expanduser()))


def evaluator_settings() -> EvaluatorSettings:
    """The evaluator's settings now. Raises ConfigError that names the variable."""
    try:
        return EvaluatorSettings()
    except ValidationError as error:
        problems = "; ".join(
            f"ROLLBOOK_{str(problem['loc'][0]).upper()}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise ConfigError(problems) from None
