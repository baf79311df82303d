"""A read-only view of the artifact store on loopback, so that links in the Temporal UI can open a screenshot.

`GET /artifacts/<sha256>` and nothing else: no listing, no writing. The `Host` header must name this machine, or a
page on the internet could read screenshots through the visitor's browser (DNS rebinding). Everything is sent with
`nosniff` and a sandboxing policy: what a desktop produced must never run as one of Rollbook's pages.
"""

import argparse
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from rollbook.artifacts import ArtifactStore
from rollbook.errors import ArtifactError
from rollbook.stack.processes import HOST

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; sandbox",
    "Cross-Origin-Resource-Policy": "same-site",
    "Referrer-Policy": "no-referrer",
    # The name is the content's digest: it never changes.
    "Cache-Control": "private, max-age=31536000, immutable",
}
_STORE: web.AppKey[ArtifactStore] = web.AppKey("store", ArtifactStore)
_HOSTS: web.AppKey[frozenset[str]] = web.AppKey("hosts", frozenset)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def media_type(head: bytes) -> str:
    """Content type of an artifact from its first bytes: a known signature, JSON or plain text, else octets."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if b"\0" in head:
        return "application/octet-stream"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # The cut at the end of `head` may fall inside a character.
        if error.start < len(head) - 3:
            return "application/octet-stream"
        text = head[: error.start].decode()
    kind = "application/json" if text.lstrip()[:1] in ("{", "[") else "text/plain"
    return f"{kind}; charset=utf-8"


def build_app(store: ArtifactStore, port: int) -> web.Application:
    """The application for `store`, to be served on loopback `port`."""
    app = web.Application(middlewares=[_only_this_host])
    app[_STORE] = store
    app[_HOSTS] = frozenset(f"{name}:{port}" for name in (HOST, "localhost"))
    app.router.add_get("/artifacts/{digest}", _artifact)
    app.router.add_get("/healthz", _healthz)
    return app


@web.middleware
async def _only_this_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.headers.get(hdrs.HOST, "") not in request.app[_HOSTS]:
        raise web.HTTPMisdirectedRequest(text="this server answers to 127.0.0.1 and localhost only\n")
    return await handler(request)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _artifact(request: web.Request) -> web.Response:
    try:
        body = await request.app[_STORE].get(request.match_info["digest"])
    except ArtifactError as error:
        raise web.HTTPNotFound(text=f"{error}\n", headers={"X-Content-Type-Options": "nosniff"}) from error
    # 512 bytes are enough for every type that is known here.
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: media_type(body[:512]), **_SAFE_HEADERS})


def main() -> None:
    """Serve until SIGTERM: `python -m rollbook.stack.artifact_server --store URL --port N`."""
    parser = argparse.ArgumentParser(description="read-only artifact server")
    parser.add_argument("--store", required=True, help="file:///directory or s3://bucket/prefix")
    parser.add_argument("--port", required=True, type=int)
    arguments = parser.parse_args()
    app = build_app(ArtifactStore.open(arguments.store), arguments.port)
    web.run_app(app, host=HOST, port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
