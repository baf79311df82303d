"""Environments of child programs, by allow-list.

A worker has the keys of models, providers and object stores in its environment. The programs that it or the supervisor
starts inherit what they need and nothing else: a new key is kept from all of them without a change.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

COMMON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "LC_*", "TZ", "XDG_*"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONUTF8"),
)
NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
PACKAGES = (*NETWORK, "PIP_*", "UV_*")
OBJECT_STORES = (*NETWORK, "AWS_*", "AZURE_*", "GOOGLE_*")
EVERYTHING = ("*",)


def child_environment(*patterns: str, source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `source` that every program needs, and those that match a pattern (`AWS_*`)."""
    allowed = (*COMMON, *patterns)
    return {name: value for name, value in source.items() if any(fnmatchcase(name, pattern) for pattern in allowed)}
