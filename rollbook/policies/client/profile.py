"""Endpoint profiles: where a model is served and with which key. Worker settings, never part of a spec.

`ROLLBOOK_ENDPOINTS_FILE` names a TOML file (or JSON of the same shape):

    [endpoints.policy]
    base_url = "http://127.0.0.1:8000/v1"
    api_key_env = "POLICY_KEY"

docs/reference/model-endpoints.md has every field.
"""

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from models.base import Name
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError
from rollbook.redaction import SECRETS

ApiStyle = Literal["vllm", "sglang", "openai"]

_HEADER_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
_TELLING = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


class EndpointProfile(BaseModel):
    """One endpoint. The key is a SecretStr and is redacted everywhere once the profile exists."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Name
    base_url: str
    """Up to and including `/v1`; `/chat/completions` and `/models` are appended."""
    api: ApiStyle = "vllm"
    """Which extensions the server knows: `vllm` and `sglang` give token ids and log probabilities, `openai` none."""
    api_key: SecretStr | None = None
    """Sent as `Authorization: Bearer …`."""
    max_connections: int = Field(default=32, ge=1, le=4096)
    """Calls that one worker process has open at once; further ones wait; their deadlines start after it."""
    connect_timeout_s: float = Field(default=10.0, gt=0, le=300)
    patience_s: float = Field(default=1800.0, ge=0, le=6 * 3600)
    """Longest time for which a call that finds no working server is tried again, before its attempt ends."""
    headers: dict[str, SecretStr] = {}
    """Sent with every request, for instance a gateway's tenant."""
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""

    @field_validator("base_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("use http://host:port/v1 or https://host/v1")
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL; use api_key_env or api_key_file")
        if parts.query or parts.fragment:
            raise ValueError("a query or fragment does not belong here; use headers")
        return value.rstrip("/").removesuffix("/chat/completions")

    @field_validator("api_key")
    @classmethod
    def _api_key(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is None else _line(value, "the key")

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not _HEADER_NAME.match(name):
                raise ValueError(f"{name!r} is not a name of an HTTP header")
            if name.lower() in ("host", "content-length", "content-type", "transfer-encoding"):
                raise ValueError(f"{name!r} is set by the client itself")
        return {name: _line(text, name) for name, text in value.items()}

    @model_validator(mode="after")
    def _redacted_from_now_on(self) -> "EndpointProfile":
        SECRETS.add(self.api_key)
        for name, value in self.headers.items():
            if _TELLING.search(name):
                SECRETS.add(value)
                SECRETS.add(value.get_secret_value().rpartition(" ")[2])  # `Basic …`, `Bearer …`
        return self


def _line(value: SecretStr, what: str) -> SecretStr:
    plain = value.get_secret_value().strip()
    if not plain or not plain.isascii() or not plain.isprintable():
        raise ValueError(f"{what} must be one line of printable ASCII")
    return SecretStr(plain)


def endpoint_at(base_url: str, api: ApiStyle = "vllm", api_key: str | None = None) -> EndpointProfile:
    """A profile for a URL that no file describes; raises ConfigError for a bad one."""
    fields = {"name": "url", "base_url": base_url, "api": api, "api_key": api_key}
    try:
        return EndpointProfile.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("; ".join(_explained("endpoint", error))) from None


def load_profiles(settings: Settings) -> dict[str, EndpointProfile]:
    """Every profile of the endpoints file, by name; empty when no file is set. Raises ConfigError that names the field.

    Reads keys from the environment and from files now, so that a missing one is found when the worker starts.
    """
    path = settings.endpoints_file
    if path is None:
        return {}
    document = _read(path)
    entries = document.get("endpoints")
    if not isinstance(entries, dict) or set(document) != {"endpoints"}:
        raise ConfigError(f"{path}: expected tables [endpoints.NAME] and nothing else")
    return {name: _profile(path, name, entry) for name, entry in entries.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        found = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
    except OSError as error:
        raise ConfigError(f"ROLLBOOK_ENDPOINTS_FILE: {path}: {error.strerror}") from None
    except ValueError as error:  # its text quotes no line of the file
        raise ConfigError(f"ROLLBOOK_ENDPOINTS_FILE: {path}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"ROLLBOOK_ENDPOINTS_FILE: {path}: expected an object with the key endpoints")
    return found


def _profile(path: Path, name: str, entry: Any) -> EndpointProfile:
    where = f"{path}: endpoints.{name}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected a table")
    fields = dict(entry)
    sources = [key for key in ("api_key", "api_key_env", "api_key_file") if key in fields]
    if len(sources) > 1:
        raise ConfigError(f"{where}: {' and '.join(sources)} exclude each other")
    headers = fields.get("headers", {})
    if "api_key" in fields or (isinstance(headers, dict) and any(_TELLING.search(key) for key in headers)):
        _private(path, f"{where}: it holds a key")
    if (variable := fields.pop("api_key_env", None)) is not None:
        fields["api_key"] = _from_environment(where, str(variable))
    if (key_file := fields.pop("api_key_file", None)) is not None:
        fields["api_key"] = _from_file(where, path.parent / str(key_file))
    fields.update(headers=_with_environment_headers(where, headers, fields.pop("headers_env", {})))
    try:
        return EndpointProfile.model_validate({**fields, "name": name})
    except ValidationError as error:
        raise ConfigError("; ".join(_explained(where, error))) from None


def _with_environment_headers(where: str, headers: Any, from_environment: Any) -> dict[str, Any]:
    if not isinstance(headers, dict) or not isinstance(from_environment, dict):
        raise ConfigError(f"{where}.headers, headers_env: expected tables of header names")
    return headers | {key: _from_environment(where, str(name)) for key, name in from_environment.items()}


def _explained(where: str, error: ValidationError) -> list[str]:
    return [
        f"{where}{''.join(f'.{part}' for part in problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    ]


def _from_environment(where: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"{where}: the environment variable {variable} is not set; the worker needs it")
    return value


def _from_file(where: str, path: Path) -> str:
    _private(path, f"{where}.api_key_file")
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}.api_key_file: {path}: {type(error).__name__}") from None


def _private(path: Path, where: str) -> None:
    """Raises ConfigError when others may read the file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{where}: {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{where}: {path} may be read by others (mode {mode:04o}): chmod 600 {path}")
