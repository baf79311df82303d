"""Talks to models: an OpenAI-compatible chat-completions client over bounded pools, one per endpoint profile."""

from rollbook.errors import (
    AuthFailed,
    BadRequest,
    CallError,
    ContextOverflow,
    OutOfTime,
    RateLimited,
    TransportFailed,
)
from rollbook.policies.client.client import Exchanged, ModelClient, ModelClients
from rollbook.policies.client.profile import EndpointProfile, load_profiles
from rollbook.policies.client.reply import ChatReply
from rollbook.policies.client.request import ChatRequest, Sampling, media_url

__all__ = [
    "AuthFailed",
    "BadRequest",
    "CallError",
    "ChatReply",
    "ChatRequest",
    "ContextOverflow",
    "EndpointProfile",
    "Exchanged",
    "ModelClient",
    "ModelClients",
    "OutOfTime",
    "RateLimited",
    "Sampling",
    "TransportFailed",
    "load_profiles",
    "media_url",
]
