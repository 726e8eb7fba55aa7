"""From a click in the browser to the simulated fleet and back: executed, verified, measured, on record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from playwright.sync_api import Browser, Locator, expect

from tocsin.client.models import TimelineItem, TimelineQuery
from tocsin.config.settings import Settings
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import ActionKind
from tocsin.journal.verify import verify
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.browsing import WAIT, Shown, barriers, dashboard, idle, opened, overflow, visit
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import serving

pytestmark = [pytest.mark.browser, pytest.mark.server]

GPU = "9"
OTHER_HOSTS_GPU = "1"
MOST_STEPS = 240
THROTTLES = TimelineQuery(actions=(ActionKind.THROTTLE,))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Sixteen simulated GPUs with their brain; time passes only when a test lets it."""
    folder = tmp_path_factory.mktemp("approval")
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 16, "fault_rate_scale": 0.0},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {
                "confirmations": 1,
                "boot_grace_seconds": 0,
                "settle_seconds": 60,
                "goal_seconds": 0,
                "cooldown_seconds": 0,
            },
        }
    )
    made = Demo(demo_settings(wanted, folder), T0)
    yield made
    made.running.stop()


@pytest.fixture(scope="module")
def shown_at(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard over the brain of `demo`."""
    with serving(demo.service) as api, dashboard(api, tmp_path_factory.mktemp("shown")) as url:  # type: ignore[arg-type]
        yield url


def says(where: Locator, words: str) -> None:
    """Wait until `where` says `words`; the page looks again every few seconds."""
    expect(where).to_contain_text(words, timeout=WAIT)


def shown(what: Locator) -> None:
    """Wait until `what` is there."""
    expect(what).to_be_visible(timeout=WAIT)


def stepped(demo: Demo, wanted: object) -> TimelineItem:
    """Let time pass until a throttle is as `wanted` says."""
    for _ in range(MOST_STEPS):
        demo.step()
        for item in demo.service.timeline(THROTTLES, 0, 200).items:
            if wanted(item):  # type: ignore[operator]
                return item
    raise AssertionError("no throttle came to be as it was wanted")


def carried_out(demo: Demo) -> TimelineItem:
    """Let time pass, and say yes to every throttle, until one is in effect that can be undone."""
    # Where the test runs once more, the fan has failed already.
    with suppress(Conflict):
        demo.service.inject("fan_failure", OTHER_HOSTS_GPU, "demo")
    for _ in range(MOST_STEPS):
        demo.step()
        for item in demo.service.timeline(THROTTLES, 0, 200).items:
            if item.outcome is not None and not item.undo_problem:
                return item
            if item.approvable and not set(item.held_by) - {"approval"}:
                demo.service.approve(item.id, "ann")
    raise AssertionError("no throttle came into effect")


def limit_of(demo: Demo, uuid: str) -> float:
    reading = demo.brain.memory.reading(uuid)
    assert reading is not None
    return reading.values["gpu_power_limit_watts"]


def test_an_approval_in_the_browser_is_executed_verified_and_on_record(
    browser: Browser, shown_at: str, demo: Demo
) -> None:
    demo.service.inject("fan_failure", GPU, "demo")
    item = stepped(demo, lambda one: one.approvable and not set(one.held_by) - {"approval"})
    uuid, before = item.subject.name, limit_of(demo, item.subject.name)

    with opened(browser, f"{shown_at}/?lang=en") as page:
        visit(page, "Decisions")
        row = page.locator(f".st-key-row-{item.id} button")
        row.click()
        story = page.locator(".tc-stand")
        says(story, "Waiting for approval")
        page.locator(f".st-key-approve-{item.id} button").click()
        shown(page.get_by_text("Approved: ").first)
        says(story, "Approved by loopback; runs once every guard allows it")

        stepped(demo, lambda one: one.id == item.id and one.state is DecisionState.VERIFYING)
        says(story, "Executed; effect checked")
        assert limit_of(demo, uuid) <= before

        ended = stepped(demo, lambda one: one.id == item.id and one.outcome is not None)
        assert ended.outcome is not None
        assert ended.outcome.executor == "simulated"
        assert limit_of(demo, uuid) < before
        says(story, f"Done: {item.action.replace('_', ' ')} in the simulated fleet; ")
        shown(page.get_by_text("Measured effect"))
        shown(page.get_by_text("Temperature, change", exact=True))
        shown(page.get_by_text("approved by loopback").first)
        shown(page.get_by_text("started by simulated").first)

        visit(page, "Audit")
        shown(page.get_by_text("The hash chain is valid"))
        search = page.get_by_label("Host, GPU, decision id, words")
        search.fill(item.id)
        search.press("Enter")
        table = page.locator("table.tc")
        shown(table.get_by_text("loopback approved: Throttle").first)
        shown(table.get_by_text("Started by simulated: Throttle").first)
        shown(table.get_by_text("Ended, ").first)
        shown(table.get_by_text(re.compile("^Effect ")).first)
        shown(page.locator(".tc-sim").first)

    kinds = [entry.kind for entry in demo.service.story(item.id).entries]
    assert [kind for kind in kinds if kind != "verdict"] == [
        "decision", "approval", "execution_started", "verification", "verification", "outcome"
    ]  # fmt: skip
    assert verify(demo.settings.journal.path).ok


def test_an_undo_in_the_browser_gives_back_what_was_taken(browser: Browser, shown_at: str, demo: Demo) -> None:
    done = carried_out(demo)
    before = limit_of(demo, done.subject.name)
    with opened(browser, f"{shown_at}/?lang=en") as page:
        visit(page, "Decisions")
        search = page.get_by_label("Search sentence, host, rule, id")
        search.fill(done.id)
        search.press("Enter")
        idle(page)
        page.get_by_text("All (").click()
        idle(page)
        page.locator(f".st-key-row-{done.id} button").click()
        reason = page.get_by_label("Reason, kept in the journal")
        reason.fill("its job ends at noon")
        reason.press("Enter")
        # A click while the page is drawn anew may be lost.
        idle(page)
        page.locator(f".st-key-undo-{done.id} button").click()
        shown(page.get_by_text("Being undone: ").first)
        page.get_by_text("Open the decision that undoes it").click()
        says(page.locator(".tc-stand"), "Approved by loopback")
        undoing = demo.service.story(done.id).decision.undone_by
        for _ in range(MOST_STEPS):
            demo.step()
            if demo.service.story(undoing).decision.outcome is not None:
                break
        says(page.locator(".tc-stand"), "Done: restore in the simulated fleet; ")
    assert limit_of(demo, done.subject.name) > before
    asked = [entry for entry in demo.service.story(undoing).entries if entry.actor == "loopback"]
    assert [entry.kind for entry in asked] == ["decision", "approval"]


PAGES = [
    ("Decisions", "show=all", "Why it waits", "dark"),
    ("Scoreboard", "board=hazards", "Reliability", "light"),
    ("Scoreboard", "board=crossings", "By model and version", "dark"),
    ("Audit", "view=everything", "The hash chain is valid", "light"),
]


@pytest.mark.parametrize(("name", "query", "words", "theme"), PAGES)
def test_pages_of_decisions_fit_the_width_and_bar_nobody(
    browser: Browser, small: Shown, name: str, query: str, words: str, theme: str
) -> None:
    with opened(browser, f"{small.url}/{name.lower()}?{query}", theme) as page:
        shown(page.get_by_text(words).first)
        idle(page)
        assert overflow(page)[0] == 0
        assert barriers(page) == []
