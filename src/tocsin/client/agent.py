"""The agent's side of orders: asks a brain for its own and says what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from tocsin.client.bearer import BearerToken
from tocsin.client.control import OrderTaken
from tocsin.client.moved import ASSIGNED_ONLY, MISDIRECTED, moved_to
from tocsin.client.wire import adapter
from tocsin.domain.errors import Unavailable
from tocsin.domain.order import Order, OrderReport
from tocsin.http_client import ClientTls, http_client

BACK_AFTER = 5
"""Failures in a row at its own address after which an agent asks the other cells (as for pushes)."""
MOST_SHOWN = 200
MOST_DETAIL = 1000


class OrderLink:
    """Speaks to one brain for one host. Every method raises Unavailable where it does not answer as it should.

    Belongs to one thread. `timeout` is seconds for each step of a request. Environment proxies are not used. Where the
    brain names that of another cell, one of `cell_urls`, that one is asked until it does not answer. Where nobody
    answers at its own address for long, those are asked whose the host is.
    """

    def __init__(
        self,
        base_url: str,
        host: str,
        token: BearerToken | None = None,
        timeout: float = 10.0,
        tls: ClientTls | None = None,
        transport: httpx2.BaseTransport | None = None,
        cell_urls: Sequence[str] = (),
    ) -> None:
        self._host, self._home, self._cell_urls = host, base_url, tuple(cell_urls)
        self._others = cycle([one for one in self._cell_urls if one.rstrip("/") != base_url.rstrip("/")] or [base_url])
        self._failures = 0
        self._tls, self._token = tls, token or BearerToken()
        self._http = http_client(
            timeout, base_url=base_url, tls=tls.context if tls is not None else None, transport=transport
        )
        self._at_home = self._http.base_url

    def orders(self) -> list[Order]:
        """What this host is asked for now."""
        response = self._send("GET", "/v1/orders", params={"host": self._host})
        try:
            return adapter(list[Order]).validate_json(response.content, extra="ignore")
        except (ValidationError, ValueError) as error:
            raise Unavailable(
                f"the brain's orders cannot be read; are agent and brain of one version? {error}"
            ) from None

    def report(self, report: OrderReport) -> bool:
        """Say how an order stands; whether the brain knows it."""
        path = f"/v1/orders/{quote(report.order.id, safe='')}/report"
        short = replace(report, detail=report.detail[:MOST_DETAIL])
        response = self._send("POST", path, content=adapter(OrderReport).dump_json(short))
        try:
            return OrderTaken.model_validate_json(response.content, extra="ignore").known
        except ValidationError as error:
            raise Unavailable(f"the brain's answer to a report cannot be read: {error}") from None

    def close(self) -> None:
        """Close connections; safe to repeat."""
        self._http.close()

    def _send(
        self, method: str, path: str, *, params: dict[str, str] | None = None, content: bytes | None = None
    ) -> httpx2.Response:
        if self._tls is not None:
            self._tls.refresh()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if token := self._token.now():
            headers["Authorization"] = f"Bearer {token}"
        home = self._at_home
        try:
            if self._http.base_url != home:
                headers[ASSIGNED_ONLY] = "1"
            response = self._http.request(method, path, params=params, content=content, headers=headers)
            if url := moved_to(response.status_code, response.content, (*self._cell_urls, self._home)):
                self._http.base_url = httpx2.URL(url)
                response = self._http.request(method, path, params=params, content=content, headers=headers)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            asked, self._failures = self._http.base_url, self._failures + 1
            # Nobody at its own address for long: the other cells know whose the host is by now.
            other = asked == home and self._failures >= BACK_AFTER
            self._http.base_url = httpx2.URL(next(self._others)) if other else home
            raise Unavailable(f"no brain answers at {asked} ({error})") from None
        if response.status_code != 200:
            if response.status_code == MISDIRECTED:
                self._http.base_url = home
            shown = response.text[:MOST_SHOWN]
            raise Unavailable(f"{self._http.base_url} answers {response.status_code} to {path}: {shown}")
        self._failures = 0
        return response
