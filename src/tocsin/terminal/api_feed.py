"""What a brain tells, over its API."""

from __future__ import annotations

from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.client.models import GpuDetail
from tocsin.domain.clock import HOUR, SECOND, from_iso, to_iso
from tocsin.terminal import text
from tocsin.terminal.look import CHARTED, Detail, Look

SPAN_MS = 6 * HOUR
POINTS = 360
SHOWN = 8
"""Most sentences of one kind in a GPU's view."""


class ApiFeed:
    """A brain behind `client`, which is closed with it."""

    def __init__(self, client: Client) -> None:
        self.origin = f"brain {client.base_url}"
        self._client = client
        self._role: str | None = None

    def look(self) -> Look:
        if self._role is None:
            self._role = self._client.me().role
        try:
            summary = self._client.summary()
        except Denied:
            # A log-in that has ended, or a role that was changed: asked anew at the next look.
            self._role = None
            raise
        return Look(
            origin=self.origin,
            at=summary.now,
            gpus=tuple(self._client.gpus()),
            summary=summary,
            incidents=tuple(self._client.incidents()),
            decisions=tuple(self._client.decisions()),
            role=self._role,
        )

    def detail(self, uuid: str) -> Detail:
        found = self._client.gpu(uuid)
        end_ms = from_iso(self._client.summary().now)
        series = self._client.series(uuid, CHARTED, end_ms - SPAN_MS, end_ms, POINTS)
        columns = {name: _even(series.at, values, end_ms) for name, values in series.metrics.items()}
        return Detail(found.summary, columns, SPAN_MS / SECOND, found.values, sections(found))

    def approve(self, decision_id: str) -> None:
        self._client.approve(decision_id)

    def reject(self, decision_id: str, reason: str) -> None:
        self._client.reject(decision_id, reason)

    def close(self) -> None:
        self._client.close()


def _even(at: list[str], values: list[float | None], end_ms: int) -> list[float | None]:
    """`values` on `POINTS` even steps up to `end_ms`: the chart's width is time, also where nothing was read."""
    columns: list[float | None] = [None] * POINTS
    step = SPAN_MS / POINTS
    for moment, value in zip(at, values, strict=True):
        place = int((from_iso(moment) - end_ms + SPAN_MS) / step)
        if value is not None and 0 <= place < POINTS:
            before = columns[place]
            columns[place] = value if before is None else max(before, value)
    return columns


def sections(found: GpuDetail) -> dict[str, list[str]]:
    """What is said of a GPU, by title; a title without a sentence is left out."""
    name = text.label(found.summary)
    told = {
        "findings": [f"{one.severity}: {text.plain(one.sentence, name)} [{one.rule}]" for one in found.findings],
        "predictions": [
            f"{text.chance(one.probability)}: {text.plain(one.sentence, name)}"
            if one.probability is not None
            else text.plain(one.sentence, name)
            for one in found.predictions
        ],
        "decisions": [f"{one.state}: {text.plain(one.sentence)}" for one in found.decisions],
        "events": [
            f"{to_iso(one.at_ms)[:19].replace('T', ' ')} {one.kind.value}"
            f"{f' {one.code}' if one.code else ''}: {one.message}"
            for one in found.events
        ],
        "processes": [f"{one.pid} {one.process}: {one.label}" for one in found.owners],
    }
    return {title: lines[:SHOWN] for title, lines in told.items() if lines}
