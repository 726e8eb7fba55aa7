"""One page over HTTP within a deadline that a trickling server cannot stretch, and of bounded size."""

from __future__ import annotations

import httpx2

from tocsin.domain.clock import Clock

MAX_BYTES = 64 * 1024 * 1024
ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


class ScrapeFailed(Exception):
    """The page did not come; the text says why, in a few words."""


def is_http(url: str) -> bool:
    """Whether `url` names a host to ask over http or https."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def fetch(client: httpx2.Client, url: str, clock: Clock, seconds: float) -> str:
    """The text at `url`. Raises ScrapeFailed."""
    until = clock.monotonic() + seconds
    pieces: list[bytes] = []
    size = 0
    try:
        with client.stream("GET", url, headers={"Accept": ACCEPT}) as response:
            if response.status_code != 200:
                raise ScrapeFailed(f"HTTP status {response.status_code}")
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise ScrapeFailed(f"the page is larger than {MAX_BYTES} bytes")
                if clock.monotonic() > until:
                    raise ScrapeFailed(f"the page did not come within {seconds:g} s")
    except httpx2.TimeoutException:
        raise ScrapeFailed(f"no answer within {seconds:g} s") from None
    except httpx2.HTTPError as error:
        raise ScrapeFailed(str(error) or type(error).__name__) from None
    return b"".join(pieces).decode("utf-8", "replace")
