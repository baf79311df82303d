"""How a secret could stand in a text; written without looking at the code under test."""

import base64
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus


def nested(text: str, depth: int) -> str:
    """As JSON strings within JSON strings hold it."""
    for _ in range(depth):
        text = json.dumps(text)[1:-1]
    return text


def as_go(text: str) -> str:
    """What Go's encoder makes of it."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return escaped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def small_hex(text: str) -> str:
    """Percent-encoding with lower-case digits."""
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(text, safe=""))


def inner(secret: str) -> dict[str, str]:
    """By name: what may also stand inside base64."""
    return {
        "plain": secret,
        "url": quote(secret),
        "url, slashes too": quote(secret, safe=""),
        "url, lower case": small_hex(secret),
        "form": quote_plus(secret),
        "url twice": quote(quote(secret, safe=""), safe=""),
        "form twice": quote_plus(quote_plus(secret)),
        "json": nested(secret, 1),
        "json in utf-8": json.dumps(secret, ensure_ascii=False)[1:-1],
        "json with slashes escaped": nested(secret, 1).replace("/", "\\/"),
        "json of go": as_go(secret),
        "json of go in json": nested(as_go(secret), 1),
        "json in json": nested(secret, 2),
        "json four deep": nested(secret, 4),
        "json in a url": quote(nested(secret, 1), safe=""),
        "url in json": nested(quote(secret), 1),
        "html": html.escape(secret),
        "html in json of go": as_go(html.escape(secret)),
        "numeric entities for what is special": "".join(c if c.isalnum() else f"&#{ord(c)};" for c in secret),
        "references in xml": secret.encode("ascii", "xmlcharrefreplace").decode(),
        "repr": repr(secret)[1:-1],
        "repr of bytes": repr(secret.encode())[2:-1],
    }


def spelt(secret: str) -> dict[str, str]:
    """By name: every way of writing it, outside base64."""
    raw = secret.encode()
    return inner(secret) | {
        "numeric entities": "".join(f"&#{ord(c)};" for c in secret),
        "hexadecimal entities": "".join(f"&#x{ord(c):X};" for c in secret),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "every byte percent-encoded": "".join(f"%{byte:02x}" for byte in raw),
        "every byte as in C": "".join(f"\\x{byte:02x}" for byte in raw),
        "quoted for a shell": shlex.quote(secret).removeprefix("'").removesuffix("'"),
    }


def in_base64(said: str, lead: str = "") -> dict[str, str]:
    """By name: base64 of a text, as headers, mails, tokens and JSON have it."""
    raw = (lead + said).encode()
    plain = base64.b64encode(raw).decode()
    return {
        "base64": plain,
        "without padding": plain.rstrip("="),
        "for urls": base64.urlsafe_b64encode(raw).decode(),
        "wrapped": base64.encodebytes(raw).decode(),
        "wrapped, in json": nested(base64.encodebytes(raw).decode(), 1),
        "wrapped and indented": "\r\n  ".join(plain[at : at + 20] for at in range(0, len(plain), 20)),
        "in json with slashes escaped": plain.replace("/", "\\/"),
        "in a url": quote(plain, safe=""),
    }
