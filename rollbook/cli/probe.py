"""`probe`: is an endpoint fit for a batch?"""

import os
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.command import AsJson, finish
from rollbook.cli.connections import settings
from rollbook.cli.out import clean, print_fields, print_json, print_table, say
from rollbook.errors import InvalidInput

if TYPE_CHECKING:
    from rollbook.policies.client.probe import ProbeReport
    from rollbook.policies.client.profile import EndpointProfile


class Api(StrEnum):
    """Which extensions of the chat-completions API to use."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"


def probe(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Name of an endpoint profile, or a base URL.")],
    model: Annotated[str | None, typer.Option(help="Model to ask; the first one listed by default.")] = None,
    api: Annotated[Api | None, typer.Option(help="How to ask; the profile's way by default, vllm for a URL.")] = None,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="Environment variable with the key, for an endpoint given by URL.")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds per request.")] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Ask a model endpoint: its models, one and three images, token evidence. Exit code 1 unless all are answered."""
    from rollbook.policies.client.probe import probe as look_over

    async def work() -> int:
        profile = _by_url(endpoint, key_env) if "://" in endpoint else _by_name(endpoint, key_env)
        if api is not None:
            profile = profile.model_copy(update={"api": api.value})
        report = await look_over(profile, model, timeout_s)
        print_json(asdict(report) | {"ok": report.ok}) if as_json else _print(report)
        return 0 if report.ok else 1

    finish(work())


def _by_url(url: str, key_env: str | None) -> "EndpointProfile":
    from rollbook.policies.client.profile import endpoint_at

    settings()
    key = os.environ.get(key_env, "") if key_env else None
    if key == "":
        raise InvalidInput(f"--key-env: the environment variable {key_env} is not set")
    return endpoint_at(url, api_key=key)


def _by_name(name: str, key_env: str | None) -> "EndpointProfile":
    from rollbook.policies.client.profile import load_profiles

    if key_env is not None:
        raise InvalidInput("--key-env: goes with a URL; a profile names its own key")
    profiles = load_profiles(settings())
    if name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise InvalidInput(
            f"ENDPOINT: no endpoint profile {name!r} (there is: {known}); profiles are in the file that "
            "ROLLBOOK_ENDPOINTS_FILE names"
        )
    return profiles[name]


def _print(report: "ProbeReport") -> None:
    print_fields(
        {
            "endpoint": report.endpoint,
            "url": report.base_url,
            "api": report.api,
            "model": report.model or "none to ask",
            "version": report.model_version,
        }
    )
    rows = [
        (
            one.name,
            "ok" if one.ok else "FAILED",
            one.latency_s,
            one.prompt_tokens,
            one.finish_reason,
            clean(one.said, 400),
        )
        for one in report.checks
    ]
    print_table(("REQUEST", "RESULT", "SECONDS", "PROMPT TOKENS", "FINISH", "SAID"), rows)
    for style, problems in report.token_evidence.items():
        say(f"token evidence asked for as {style}: {clean(', '.join(problems), 400) or 'complete'}")
    for line in report.advice:
        say(clean(line))
