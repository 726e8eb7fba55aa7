"""The view in a terminal under test: what it is asked for, what a screen says as text."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from dataclasses import replace

from textual.pilot import Pilot

from tocsin.client.models import DecisionOut, GpuSummary
from tocsin.domain.clock import ManualClock, to_iso
from tocsin.domain.decision import DecisionState, Ruling, Verdict
from tocsin.domain.errors import TocsinError, Unavailable
from tocsin.terminal.look import Detail, Look
from tocsin.terminal.screen.app import TopApp
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService

CELL = 12.2
"""Width of a character in the pictures of textual."""


def fleet_gpus(hosts: int) -> tuple[GpuSummary, ...]:
    """Eight GPUs a host, those of the fake fleet first."""
    return tuple(fleet.gpu_summary(host, index) for host in range(hosts) for index in range(fleet.PER_HOST))


class FakeFeed:
    """The fake fleet as a feed; `problem` makes it fail, `settled` is what it was asked to decide."""

    origin = "brain http://fake"

    def __init__(self, hosts: int = fleet.HOSTS, role: str = "operator") -> None:
        service = FakeService()
        told = {"gpus": 8 * hosts, "hosts": hosts, "decisions_approvable": 2, "predictions": 3}
        summary = service.summary().model_copy(update=told)
        self.shown = Look(
            origin=self.origin,
            at=to_iso(fleet.NOW_MS),
            gpus=fleet_gpus(hosts),
            summary=summary,
            incidents=tuple(service.incidents()),
            decisions=tuple(_steady(service.decisions(100))),
            role=role,
            cards=tuple(service.cards(100).items),
        )
        self.problem: TocsinError | None = None
        self.looks = 0
        self.settled: list[tuple[str, bool, str]] = []

    def look(self) -> Look:
        self.looks += 1
        if self.problem is not None:
            raise self.problem
        return self.shown

    def detail(self, uuid: str) -> Detail:
        if self.problem is not None:
            raise self.problem
        gpu = next(gpu for gpu in self.shown.gpus if gpu.uuid == uuid)
        series: dict[str, list[float | None]] = {"gpu_utilization_ratio": [0.2, None, 0.9]}
        series["gpu_temperature_celsius"] = [50.0, 60.0, 70.0]
        values = {"gpu_power_watts": 317.0, 'gpu_pcie_replays_total{link="0"}': 3.0}
        return Detail(gpu, series, 21_600.0, values, {"findings": [gpu.finding] if gpu.finding else []})

    def approve(self, decision_id: str) -> None:
        self._settle(decision_id, True, "")

    def reject(self, decision_id: str, reason: str) -> None:
        self._settle(decision_id, False, reason)

    def _settle(self, decision_id: str, yes: bool, reason: str) -> None:
        self.settled.append((decision_id, yes, reason))
        left = tuple(one for one in self.shown.decisions if one.id != decision_id)
        self.shown = replace(self.shown, decisions=left)

    def close(self) -> None:
        return

    def go_away(self) -> None:
        """No answer from now on."""
        self.problem = Unavailable("no brain answers at http://fake")


def _steady(decisions: list[DecisionOut]) -> list[DecisionOut]:
    """The three that the tests speak of, whatever the fake fleet gets besides, each with what two guards allow."""
    wanted = {"place_elsewhere", "drain", "reset_gpu"}
    chosen = [one for one in decisions if one.action.value in wanted and one.state is DecisionState.HELD]
    return [replace(one, verdicts=_few(one.verdicts)) for one in chosen[:3]]


def _few(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    agreed = [verdict for verdict in verdicts if verdict.ruling is Ruling.ALLOW]
    return (*agreed[:2], *(verdict for verdict in verdicts if verdict.ruling is not Ruling.ALLOW))


def screen_text(app: TopApp) -> list[str]:
    """The lines of the screen, without spaces at their ends."""
    svg = ET.fromstring(app.export_screenshot(simplify=True))
    lines: dict[float, list[tuple[float, str]]] = {}
    for node in svg.iter("{http://www.w3.org/2000/svg}text"):
        style = node.get("class") or ""
        if "-title" not in style and node.text is not None:
            lines.setdefault(float(node.get("y") or 0), []).append((float(node.get("x") or 0), node.text))
    return [_line(parts) for _, parts in sorted(lines.items())]


def _line(parts: list[tuple[float, str]]) -> str:
    line = ""
    for x, words in sorted(parts):
        line = line.ljust(round(x / CELL)) + words.replace("\xa0", " ")
    return line.rstrip()


async def settle(app: TopApp, pilot: Pilot[None]) -> None:
    """Wait until every answer has come and is drawn; an answer may have made the view ask again."""
    for _ in range(3):
        await app.workers.wait_for_complete()
        await pilot.pause()


def on_screen(
    feed: FakeFeed,
    play: Callable[[TopApp, Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (120, 34),
    words: str = "",
) -> None:
    """Run the view over `feed` and let `play` use it, once the first look is drawn. Later looks are asked for by F5."""

    async def run() -> None:
        app = TopApp(feed, ManualClock(), 3600.0, words)
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(app, pilot)
            await play(app, pilot)

    asyncio.run(run())
