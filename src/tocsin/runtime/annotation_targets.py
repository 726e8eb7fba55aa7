"""Where marks go: Grafana's own store of annotations, and a store that keeps marks beside its readings.

Grafana's API has no key for an annotation: the same one posted twice is two. Where it is not certain whether a post
arrived, the tag that names the entry is looked for first. API: https://grafana.com/docs/grafana/latest/developers/
http_api/annotations/ (release 8 to 13).
"""

from __future__ import annotations

from typing import Protocol

import httpx2

from tocsin.actions.notifications.delivery import tls_context
from tocsin.actions.notifications.protocol import Delivery
from tocsin.actions.notifications.text import clean, clip
from tocsin.config.grafana import GrafanaSettings
from tocsin.domain.annotation import Annotation
from tocsin.store.annotations import KeepsAnnotations
from tocsin.store.port import StoreRejected, StoreUnavailable

PATH = "/api/annotations"
TAG = "tocsin"
"""The tag that the dashboards filter by."""
LONGEST_TEXT = 1_000
"""Characters of one annotation (own choice): a tooltip that is longer is not read."""
_REFUSED = frozenset({400, 413, 422})
"""Answers that the same annotation will get again; a token or an address at fault is another matter."""


class Place(Protocol):
    """One receiver of marks; expected failures come back as a delivery."""

    name: str

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:
        """Show `mark`, one try; `doubtful` says that an earlier try may have arrived."""
        ...

    def close(self) -> None:
        """Let go of connections; safe to repeat."""
        ...


class GrafanaPlace:
    """Posts annotations of the whole organisation, which every dashboard can show."""

    name = "grafana"

    def __init__(self, settings: GrafanaSettings) -> None:
        self._settings = settings
        self._client = httpx2.Client(
            base_url=settings.url.rstrip("/"),
            timeout=settings.timeout_seconds,
            verify=True if settings.ca_file is None else tls_context(settings.ca_file),
            headers={"authorization": f"Bearer {settings.token.get_secret_value()}"},
        )

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:
        if mark.simulated and not self._settings.simulated:
            return Delivery(True, "simulated", 0)
        try:
            if doubtful and self._has(mark):
                return Delivery(True, "was there", 1)
            answer = self._client.post(PATH, json=annotation(mark))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {type(error).__name__}", 1)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {type(error).__name__}", 1, certain=False)
        return _judged(answer)

    def _has(self, mark: Annotation) -> bool:
        """Whether the annotation is there. Raises HTTPError where that cannot be told."""
        span = {"from": mark.at_ms, "to": (mark.end_ms or mark.at_ms) + 1, "limit": 1}
        answer = self._client.get(PATH, params={**span, "tags": [TAG, _entry_tag(mark)]})
        answer.raise_for_status()
        return bool(answer.json())

    def close(self) -> None:
        self._client.close()


def _judged(answer: httpx2.Response) -> Delivery:
    if answer.is_success:
        return Delivery(True, f"answered {answer.status_code}", 1)
    said = clip(clean(answer.text), 200)
    certain = answer.status_code < 500
    return Delivery(
        False, f"answered {answer.status_code}: {said}", 1, certain=certain, again=answer.status_code not in _REFUSED
    )


def annotation(mark: Annotation) -> dict[str, object]:
    """`mark` as the API takes it; times are milliseconds since the epoch."""
    named = {"host": mark.host, "gpu": mark.gpu, "pool": mark.pool, "action": mark.action}
    tags = [TAG, mark.kind, *(f"{name}:{value}" for name, value in named.items() if value), _entry_tag(mark)]
    if mark.simulated:
        tags.append("simulated")
    made: dict[str, object] = {"time": mark.at_ms, "tags": tags, "text": clip(clean(mark.text), LONGEST_TEXT)}
    return made if mark.end_ms is None else made | {"timeEnd": mark.end_ms}


def _entry_tag(mark: Annotation) -> str:
    return f"entry:{mark.key}"


class StorePlace:
    """A store that keeps marks; the same mark again changes nothing there."""

    name = "store"

    def __init__(self, store: KeepsAnnotations) -> None:
        self._store = store

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:  # noqa: ARG002  # a second write changes nothing
        try:
            self._store.mark([mark])
        except StoreUnavailable as error:
            return Delivery(False, str(error), 1, certain=False)
        except StoreRejected as error:
            return Delivery(False, str(error), 1, again=False)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """Nothing: the store is somebody else's."""
