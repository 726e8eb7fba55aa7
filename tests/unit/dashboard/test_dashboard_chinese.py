"""Chinese is whole: every page over a brain whose simulated fleet fails in every way, without an English sentence."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.config.access import ApiSettings
from tocsin.config.settings import Settings
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.text import metric_label
from tocsin.domain.clock import ManualClock
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import ActionKind
from tocsin.domain.metrics import METRICS
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.brain import Brain
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.jobs import POOLS
from tocsin_testing.builders import T0
from tocsin_testing.simulated import fleet as simulated

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
SAYING = (
    *("html", "markdown", "caption", "error", "info", "warning", "success", "page_link", "expander", "popover"),
    *("button", "checkbox", "metric", "selectbox", "multiselect", "tab", "toggle", "text_input", "radio"),
)
ENGLISH = re.compile(r"(?:\b[a-z][a-z'-]+\b[ ,;:]+){2,}[a-z][a-z'-]+\b")
"""Three words of lower case or more, one after another."""
COMMANDS = re.compile(r"\btocsin(?: [a-z-]+)+")
LABELS = frozenset(metric_label(name).lower() for name in METRICS)
"""Metrics that the table of words leaves to their names."""
HIDDEN = re.compile(r"<(style|script|code|pre)\b.*?</\1>", re.DOTALL)
GPUS, STEPS, BEFORE = 32, 34, 3


def _with_faults(brain: Brain, fleet: SimulatedFleet, clock: ManualClock) -> None:
    """A fault of every kind, each on a GPU that it can befall, a minute apart."""
    kinds = list(fault_kinds())
    for step in range(STEPS):
        if step >= BEFORE and kinds:
            kind, first = kinds.pop(), 3 * len(kinds)
            for gpu in range(first, first + GPUS):
                try:
                    fleet.inject(kind, str(gpu % GPUS))
                    break
                except TocsinError:
                    continue
        _tick(brain, fleet, clock)


def _tick(brain: Brain, fleet: SimulatedFleet, clock: ManualClock) -> None:
    batch = fleet.step()
    clock.advance(batch.readings[0].at_ms - clock.now_ms())
    brain.accept(batch)
    brain.tick()


@pytest.fixture(scope="module")
def brain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brain]:
    folder, clock, fleet = tmp_path_factory.mktemp("chinese"), ManualClock(T0), simulated(GPUS)
    wanted = {
        "store": {"path": folder / "store"},
        "journal": {"path": folder / "journal.db"},
        "forecast": {"worker": False},
        "actions": {
            "executors": ["simulated"],
            "mode": "propose",
            "managed_pools": [*POOLS],
            "boot_grace_seconds": 0,
            "settle_seconds": 60,
            "goal_seconds": 120,
            "time_box_seconds": 1500,
        },
        "prices": {"currency": "EUR", "gpu_hour_default": 2.0},
    }
    running = open_brain(Settings.model_validate(wanted), clock, propose=True, fleet=fleet)
    operator = running.brain.actions.operator
    _with_faults(running.brain, fleet, clock)
    if running.brain.actions.controls().breaker is not None:
        operator.reset_breaker("ann")
    for status in running.brain.statuses():
        if status.state is DecisionState.HELD:
            operator.approve(status.decision.id, "ann")
    for _ in range(12):
        _tick(running.brain, fleet, clock)
    running.brain.forecast()
    yield running.brain
    running.stop()


@pytest.fixture(scope="module")
def url(brain: Brain) -> Iterator[str]:
    settings = ApiSettings()
    server = ApiServer(create_app(BrainService(brain), settings), settings=settings, refused=lambda _reason: None)
    server.start()
    magic = config.get_option("runner.magicEnabled")
    # As the launcher has it: the docstrings of a page's constants are not on the page.
    config.set_option("runner.magicEnabled", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, server.url)
        yield server.url
    config.set_option("runner.magicEnabled", magic)
    server.stop()


def _pages(brain: Brain) -> Iterator[tuple[str, dict[str, str]]]:
    """Every page, a GPU of each state, and a decision of each state."""
    yield from (("overview", {}), ("forecast", {}), ("scoreboard", {}), ("cost", {}), ("usage", {}), ("audit", {}))
    yield ("versions", {})
    yield from (("fragmentation", {"planner": name}) for name in ("defragment", "mig", "place", "scale", "power"))
    worst = sorted(BrainService(brain).gpus(), key=lambda gpu: gpu.state.value)
    yield from (("gpu", {"gpu": uuid}) for uuid in {gpu.state: gpu.uuid for gpu in worst}.values())
    each = {one.state: one.decision.id for one in brain.statuses()}
    yield from (("decisions", {"decision": identity, "show": "all"}) for identity in each.values())


def _shown(app: AppTest, page: str, query: dict[str, str]) -> Iterator[str]:
    """Line by line what a page in Chinese shows, the words of its tooltips among them."""
    app.query_params.clear()
    app.query_params.update(query, lang="zh")
    if page != "overview":
        app.switch_page(f"page_{page}.py")
    app.run()
    assert not app.exception, (page, query)
    for kind in SAYING:
        for element in app.get(kind):
            proto = getattr(element, "proto", None)
            for part in (str(getattr(proto, name, "") or "") for name in ("body", "label", "help", "placeholder")):
                plain = HIDDEN.sub(" ", part)
                yield from re.findall(r'(?:title|aria-label|alt)="([^"]*)"', plain)
                yield from re.sub(r"<[^>]+>", "\n", plain).split("\n")


def _english(line: str) -> bool:
    plain = COMMANDS.sub("", html.unescape(line)).strip()
    known = re.sub(r" [\w=\"{}.@-]+$", "", plain).lower() in LABELS or plain.lower() in LABELS
    return bool(ENGLISH.search(plain)) and not known


def test_no_page_in_chinese_shows_an_english_sentence(brain: Brain, url: str) -> None:
    app = AppTest.from_file(str(APP), default_timeout=60).run()
    shown = {(page, *query.values()): {*_shown(app, page, query)} for page, query in _pages(brain)}
    assert len({frozenset(lines) for lines in shown.values()}) == len(shown), "each is a page of its own"
    # What drivers and agents wrote nobody translates.
    service = BrainService(brain)
    reported = {event.message for one in service.gpus() for event in service.gpu(one.uuid).events} - {""}
    left = {(page, line.strip()) for page, lines in shown.items() for line in lines if _english(line)}
    assert not {one for one in left if not any(message in html.unescape(one[1]) for message in reported)}
    acted = [one for one in brain.statuses() if one.decision.action is not ActionKind.NOTIFY]
    assert {DecisionState.HELD, DecisionState.EXPIRED} <= {one.state for one in acted}, "there was something to tell"
    assert any(one.outcome is not None and one.outcome.detail_zh for one in acted)


def test_an_english_sentence_would_be_found() -> None:
    assert _english("原因：its time box ended")
    assert not _english("由人用 tocsin breaker reset 复位")
    assert not _english("Ecc dram corrected aggregate")
