"""The usual spellings of a secret; written independently of the code under test."""

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus


def nested(text: str, depth: int) -> str:
    """The text inside JSON strings within JSON strings."""
    for _ in range(depth):
        text = json.dumps(text)[1:-1]
    return text


def as_go(text: str) -> str:
    """JSON as Go's encoder writes it."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return escaped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def in_text(secret: str) -> dict[str, str]:
    """By name: spellings that may also be inside base64."""
    return {
        "plain": secret,
        "url": quote(secret),
        "url, slashes too": quote(secret, safe=""),
        "url, lower case": re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), quote(secret, safe="")),
        "form": quote_plus(secret),
        "json": nested(secret, 1),
        "json in utf-8": json.dumps(secret, ensure_ascii=False)[1:-1],
        "json of go": as_go(secret),
        "json of go in json": nested(as_go(secret), 1),
        "json in json": nested(secret, 2),
        "json three deep": nested(secret, 3),
        "url in json": nested(quote(secret), 1),
        "html": html.escape(secret),
        "html in json of go": as_go(html.escape(secret)),
        "repr": repr(secret)[1:-1],
        "repr in json": nested(repr(secret)[1:-1], 1),
    }


def usual(secret: str) -> dict[str, str]:
    """By name: every usual spelling outside base64."""
    digits = secret.encode().hex()
    return in_text(secret) | {"hex": digits, "HEX": digits.upper()}


def in_base64(text: str, lead: str = "") -> dict[str, str]:
    """By name: base64 of a text after a lead."""
    raw = (lead + text).encode()
    plain = base64.b64encode(raw).decode()
    return {
        "base64": plain,
        "without padding": plain.rstrip("="),
        "for urls": base64.urlsafe_b64encode(raw).decode(),
    }


def usual_in_base64(secret: str) -> list[str]:
    """The spellings for which base64 is searched, each in base64 at the three alignments."""
    forms = in_text(secret)
    return [
        written
        for name in ("plain", "json", "json in utf-8", "json of go", "url, slashes too")
        for lead in ("", "u:", "us:", "user:")
        for written in in_base64(forms[name], lead).values()
    ]
