"""One token for each node, made from one key: the brain knows them all without a list.

A token is ``th.HOST.MAC``; MAC is the HMAC-SHA-256 of the host, in lower case, under the key, in hexadecimal. What a
node's token says counts for that node alone, so that one that is stolen is worth one node.
"""

from __future__ import annotations

import hashlib
import hmac

from tocsin.domain.errors import InputError

PREFIX = "th."
_DOMAIN = b"tocsin host token\n"
"""What is signed here can be nothing that the same key signs elsewhere."""
MAX_HOST = 253


def host_token(key: str, host: str) -> str:
    """The token of the node `host`. Raises InputError where that is no host name or there is no key."""
    if not key:
        raise InputError("api.host_key", "(unset)", "is needed to issue tokens", "set it, or a file for it")
    if not host or len(host) > MAX_HOST or any(char.isspace() or not char.isprintable() for char in host):
        raise InputError("--host", host[:100], "is no host name", "use the name that the agent reports")
    return f"{PREFIX}{host.lower()}.{_mac(key, host)}"


def host_of_token(key: str, token: str) -> str | None:
    """The node that `token` was issued for, in lower case; None where it is no token of `key`."""
    host, _, mac = token.removeprefix(PREFIX).rpartition(".")
    if not (key and token.startswith(PREFIX) and 0 < len(host) <= MAX_HOST and mac.isascii()):
        return None
    return host if hmac.compare_digest(_mac(key, host), mac) and host == host.lower() else None


def _mac(key: str, host: str) -> str:
    return hmac.new(key.encode(), _DOMAIN + host.lower().encode(), hashlib.sha256).hexdigest()
