"""Endpoint profiles: what a file may say, and that its keys never show."""

import json
from pathlib import Path

import pytest

from rollbook.config.settings import load_settings
from rollbook.errors import ConfigError
from rollbook.policies.client import EndpointProfile, ModelClients, load_profiles
from rollbook.redaction import redact

KEY = "ep-key/with+odd=chars"


def profiles(path: Path, text: str, mode: int = 0o600) -> dict[str, EndpointProfile]:
    path.write_text(text)
    path.chmod(mode)
    return load_profiles(load_settings(endpoints_file=path))


def test_no_file_no_profiles() -> None:
    assert load_profiles(load_settings()) == {}


def test_a_profile_from_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", f" {KEY}\n")
    monkeypatch.setenv("TENANT_TOKEN", "tenant-token-1")
    text = """
        [endpoints.policy]
        base_url = "http://127.0.0.1:8000/v1/"
        api = "sglang"
        api_key_env = "POLICY_KEY"
        max_connections = 3
        headers = { x-tenant = "a" }
        headers_env = { x-auth-token = "TENANT_TOKEN" }
    """
    found = profiles(tmp_path / "e.toml", text, mode=0o644)["policy"]  # it holds no key itself
    assert (found.base_url, found.api, found.max_connections) == ("http://127.0.0.1:8000/v1", "sglang", 3)
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == KEY
    assert {name: value.get_secret_value() for name, value in found.headers.items()} == {
        "x-tenant": "a",
        "x-auth-token": "tenant-token-1",
    }
    assert KEY not in repr(found) + str(found) + found.model_dump_json()
    assert KEY not in redact(f"<{KEY}>")
    assert "tenant-token-1" not in redact("tenant-token-1")


def test_a_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "key").chmod(0o600)
    body = {"endpoints": {"p": {"base_url": "https://host/v1", "api_key_file": "key"}}}
    found = profiles(tmp_path / "e.json", json.dumps(body))["p"]
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_files_with_keys_must_be_private(tmp_path: Path, mode: int) -> None:
    text = f'[endpoints.p]\nbase_url = "http://h/v1"\napi_key = "{KEY}"'
    with pytest.raises(ConfigError, match="chmod 600") as error:
        profiles(tmp_path / "e.toml", text, mode)
    assert KEY not in str(error.value)
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        profiles(tmp_path / "f.toml", '[endpoints.p]\nbase_url = "http://h/v1"\napi_key_file = "key"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoints = 3", "endpoints.NAME"),
        ("[other]", "endpoints.NAME"),
        ("[endpoints", "ROLLBOOK_ENDPOINTS_FILE"),
        ("[endpoints]\np = 1", "endpoints.p: expected a table"),
        ("[endpoints.p]", "endpoints.p.base_url: Field required"),
        ('[endpoints.p]\nbase_url = "host:8000"', "base_url: use http"),
        ('[endpoints.p]\nbase_url = "http://u:secret@h/v1"', "credentials do not belong in a URL"),
        ('[endpoints.p]\nbase_url = "http://h/v1?key=1"', "query"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\napi = "tgi"', "api: Input should be 'vllm', 'sglang' or 'openai'"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\nmax_conections = 1', "max_conections: Extra inputs"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\nmax_connections = 0', "max_connections"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\napi_key_env = "NOT_SET_ANYWHERE"', "NOT_SET_ANYWHERE is not set"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\napi_key = "a\\nb"', "one line of printable ASCII"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\napi_key = "x"\napi_key_env = "Y"', "exclude each other"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\nheaders = { "a b" = "c" }', "is not a name of an HTTP header"),
        ('[endpoints.p]\nbase_url = "http://h/v1"\nheaders = { Host = "c" }', "set by the client itself"),
    ],
)
def test_bad_files_name_the_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        profiles(tmp_path / "e.toml", text)
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_profiles(load_settings(endpoints_file=tmp_path / "none.toml"))


async def test_an_unknown_profile_names_the_known_ones() -> None:
    clients = ModelClients({"a": EndpointProfile(name="a", base_url="http://h/v1")})
    with pytest.raises(ConfigError, match=r"no endpoint profile 'b' \(it has: a\)"):
        clients.get("b")
    assert clients.get("a") is clients.get("a")
    await clients.close()
