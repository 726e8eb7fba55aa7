"""The one way in which Tocsin makes an HTTP client: its name, its TLS, and whether proxies of the environment count."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import httpx2

from tocsin import __version__
from tocsin.domain.errors import InputError

USER_AGENT = f"tocsin/{__version__}"


KEPT_SECONDS = 65.0
"""How long an idle connection is kept (own choice): longer than an agent waits between two pushes, shorter than a brain
keeps it, so that none is closed while it is used again."""
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEPT_SECONDS)
"""Those of the library but for the time."""


MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of an answer that is read whole (own choice): it is held in memory some times over."""
ANSWER_STEPS = 10
"""How many times the time for one step of a request a whole answer may take (own choice)."""


class _BoundedBody(httpx2.SyncByteStream):
    """The body of an answer; more bytes, or more time, than it may have end it."""

    def __init__(self, body: httpx2.SyncByteStream, most_bytes: int, until_s: float) -> None:
        self._body, self._most_bytes, self._until_s = body, most_bytes, until_s

    def __iter__(self) -> Iterator[bytes]:
        taken = 0
        for piece in self._body:
            taken += len(piece)
            if taken > self._most_bytes:
                raise httpx2.ReadError(f"the answer is larger than {self._most_bytes} bytes")
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout("the answer does not end")
            yield piece

    def close(self) -> None:
        self._body.close()


def _bounded(most_bytes: int, seconds: float) -> Callable[[httpx2.Response], None]:
    """Bound the body of an answer before any of it is read. One that is compressed, though that was not asked for, is
    none: a few bytes of it may be gigabytes."""

    def bound(response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")
        body = response.stream
        assert isinstance(body, httpx2.SyncByteStream)
        response.stream = _BoundedBody(body, most_bytes, time.monotonic() + seconds)

    return bound


def http_client(
    timeout_seconds: float,
    *,
    base_url: str = "",
    headers: Mapping[str, str] | None = None,
    token: str = "",
    ca: Path | None = None,
    tls: ssl.SSLContext | None = None,
    proxies: bool = False,
    transport: httpx2.BaseTransport | None = None,
    most_bytes: int | None = MOST_BYTES,
) -> httpx2.Client:
    """A client that names itself ``tocsin/VERSION``; it follows no redirect, and keeps a connection for `KEPT_SECONDS`.

    `timeout_seconds` is for each step of a request: connecting, each write, each read. `token` is sent as bearer. `ca`
    is a PEM file in place of the system's CAs, `tls` a context of the caller's own. With `proxies` the proxy variables
    of the environment count: right for receivers on the internet, wrong for neighbours on the node or in the cluster.
    Whoever answers is a stranger: an answer of more than `most_bytes`, of more than `ANSWER_STEPS` timeouts or with an
    encoding ends in an HTTPError. None is for callers that read answers piece by piece and bound them themselves.
    Raises InputError for a CA file that cannot be used.
    """
    sent = {"User-Agent": USER_AGENT, **(headers or {})}
    if most_bytes is not None:
        sent["Accept-Encoding"] = "identity"
    if token:
        sent["Authorization"] = f"Bearer {token}"
    return httpx2.Client(
        base_url=base_url.rstrip("/"),
        headers=sent,
        timeout=timeout_seconds,
        transport=transport,
        limits=_LIMITS,
        trust_env=proxies,
        event_hooks={} if most_bytes is None else {"response": [_bounded(most_bytes, ANSWER_STEPS * timeout_seconds)]},
        verify=tls or (client_context(ca) if ca is not None else _system_context(proxies)),
    )


@cache
def _system_context(environment: bool) -> ssl.SSLContext:
    """The system's CAs, read once: reading them costs more than most requests."""
    return httpx2.create_ssl_context(trust_env=environment)


def client_context(ca: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 at least, host names checked; `ca` in place of the system's CAs, `certificate` and `key` for mTLS.

    Raises InputError for a file that cannot be read or is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise InputError("CA file", str(ca), f"cannot be used: {error}", "name a PEM file of certificates") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        load_pair(context, certificate, key)
    return context


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Let `context` show `certificate`. Raises InputError where it cannot be read or `key` does not belong to it."""
    # Without a password callback OpenSSL would ask on the terminal for that of an encrypted key.
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        remedy = "name PEM files of a certificate and of its unencrypted key"
        raise InputError("TLS certificate", str(certificate), f"cannot be used: {error}", remedy) from None


class ClientTls:
    """The TLS of a client that runs for long: `refresh` takes up a certificate that was renewed."""

    def __init__(self, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self.context = client_context(ca, certificate, key)
        self._stamp = stamp(certificate, key)

    @classmethod
    def of(cls, ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTls | None:
        """None where the system's CAs and no certificate of our own are all there is."""
        return None if ca is None and certificate is None else cls(ca, certificate, key)

    def refresh(self) -> None:
        """Read certificate and key again where they changed. Raises InputError where they cannot be used."""
        if self._certificate is not None and (now := stamp(self._certificate, self._key)) != self._stamp:
            client_context(None, self._certificate, self._key)
            load_pair(self.context, self._certificate, self._key)
            self._stamp = now


def stamp(*paths: Path | None) -> tuple[tuple[int, int] | None, ...]:
    """What tells one version of files from another; None for a file that is not there."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
