"""Delivering a message over HTTP: tries, back-off, and what a failure means."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import httpx2

from tocsin.actions.notifications.messages import encode
from tocsin.actions.notifications.signature import HEADER, sign
from tocsin.config.settings import WebhookSettings
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
_TRY_AGAIN = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a delivery ended.

    `certain` is False where it failed but the receiver may have taken it. `again` is False where the same message would
    be refused again. `rest_seconds` is how long the receiver asks to be left alone, 0 where it does not say.
    """

    ok: bool
    detail: str
    attempts: int
    certain: bool = True
    again: bool = True
    rest_seconds: float = 0.0


def pause_seconds(failures: int) -> float:
    """Rest after `failures` failed tries: doubles from half a second, at most half a minute."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS))


class WebhookSender:
    """Posts messages to one receiver.

    A timeout, a broken connection, 408, 425, 429 and any 5xx are tried again; another answer outside 2xx is final.
    `rest` waits that many seconds; without it, `close` from another thread ends a wait.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        clock: Clock,
        *,
        source: str = "tocsin",
        rest: Callable[[float], object] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._source = source
        self._closed = threading.Event()
        self._rest = rest or self._closed.wait
        self._client = httpx2.Client(timeout=settings.timeout_seconds)

    def send(self, decision: Decision, kind: str, attempts: int | None = None) -> Delivery:
        """Deliver `decision` as an event of type `kind`; at most `attempts` tries, the settings' number by default."""
        body, content_type = encode(decision, kind, self._source, self.settings.format)
        most = attempts or self.settings.attempts
        delivery = Delivery(False, "closed before the first try", 0)
        certain = True
        for count in range(1, most + 1):
            if self._closed.is_set():
                break
            delivery = self._try(body, content_type, count)
            certain = certain and delivery.certain
            if delivery.ok or not delivery.again:
                break
            if count < most:
                self._rest(pause_seconds(count))
        return Delivery(delivery.ok, delivery.detail, delivery.attempts, certain or delivery.ok, delivery.again)

    def rehearse(self, decision: Decision, kind: str) -> Delivery:
        """Make, sign and address the event as `send` does, and keep it here."""
        body, content_type = encode(decision, kind, self._source, self.settings.format)
        try:
            request = self._request(body, content_type)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return Delivery(False, _no_url(error), 1, again=False)
        signed = "signed" if HEADER in request.headers else "unsigned"
        return Delivery(True, f"dry run: would post {len(body)} bytes, {signed}, to {request.url}", 1)

    def close(self) -> None:
        """End a wait that is going on and let go of connections; safe to repeat."""
        self._closed.set()
        self._client.close()

    def _request(self, body: bytes, content_type: str) -> httpx2.Request:
        """Raises InvalidURL or UnsupportedProtocol where the receiver's address is none."""
        headers = {"content-type": content_type}
        secret = self.settings.secret.get_secret_value()
        if secret:
            headers[HEADER] = sign(secret, body, self._clock.now_ms())
        request = self._client.build_request("POST", self.settings.url, content=body, headers=headers)
        if request.url.scheme not in ("http", "https") or not request.url.host:
            raise httpx2.UnsupportedProtocol(f"{self.settings.url!r} is no address of a web server")
        return request

    def _try(self, body: bytes, content_type: str, count: int) -> Delivery:
        try:
            response = self._client.send(self._request(body, content_type))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {_words(error)}", count)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            return Delivery(False, _no_url(error), count, again=False)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {_words(error)}", count, certain=False)
        except RuntimeError:
            # What the client raises when another thread closes it between two tries.
            if not self._closed.is_set():
                raise
            return Delivery(False, "closed while sending", count, certain=False)
        return _judge(response.status_code, count)


def _no_url(error: Exception) -> str:
    return f"webhook.url cannot be used: {_words(error)}"


def _judge(status: int, count: int) -> Delivery:
    if 200 <= status < 300:
        return Delivery(True, f"answered {status}", count)
    if status >= 500:
        return Delivery(False, f"answered {status}", count, certain=False)
    return Delivery(False, f"answered {status}", count, again=status in _TRY_AGAIN)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}" + (f": {error}" if str(error) else "")
