"""From a click in the browser to the simulated fleet and back: executed, verified, measured, on record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tocsin.client.models_decisions import TimelineItem, TimelineQuery
from tocsin.config.settings import Settings
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.launch import command
from tocsin.domain.decision import DecisionState
from tocsin.domain.finding import ActionKind
from tocsin.journal.verify import verify
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing import needs
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import serving
from tocsin_testing.servers import free_port, server

pytestmark = [pytest.mark.browser, pytest.mark.server]

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
WAIT = 40_000
GPU = "9"
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
            "actions": {"confirmations": 1, "boot_grace_seconds": 0, "settle_seconds": 60, "cooldown_seconds": 0},
        }
    )
    made = Demo(demo_settings(wanted, folder), T0)
    yield made
    made.running.stop()


@pytest.fixture(scope="module")
def dashboard(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("dashboard"), free_port()
    with serving(demo.service) as api, pytest.MonkeyPatch.context() as patch:  # type: ignore[arg-type]
        patch.setenv(URL_VARIABLE, api)
        patch.setenv("HOME", str(folder))
        base = f"http://127.0.0.1:{port}"
        with server(command("127.0.0.1", port), f"{base}/_stcore/health", folder / "log"):
            yield base


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = needs.program("chromium", "chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """A page in a fresh profile; at the end no script of it must have broken."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB")
    page = context.new_page()
    page.set_default_timeout(WAIT)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert broken == []


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


def limit_of(demo: Demo, uuid: str) -> float:
    reading = demo.brain.memory.reading(uuid)
    assert reading is not None
    return reading.values["gpu_power_limit_watts"]


def test_an_approval_in_the_browser_is_executed_verified_and_on_record(
    chromium: Browser, dashboard: str, demo: Demo
) -> None:
    demo.service.inject("fan_failure", GPU, "demo")
    item = stepped(demo, lambda one: one.approvable and not set(one.held_by) - {"approval"})
    uuid, before = item.subject.name, limit_of(demo, item.subject.name)

    with opened(chromium, f"{dashboard}/?lang=en") as page:
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Decisions").click()
        row = page.locator(f".st-key-row-{item.id} button")
        row.click()
        story = page.locator(".tc-stand")
        says(story, "Waits for your yes or no")
        page.locator(f".st-key-approve-{item.id} button").click()
        shown(page.get_by_text("Approved: ").first)
        says(story, "Approved by loopback; runs once every guard allows it")

        stepped(demo, lambda one: one.id == item.id and one.state is DecisionState.VERIFYING)
        says(story, "Carried out; its effect is looked at")
        assert limit_of(demo, uuid) <= before

        ended = stepped(demo, lambda one: one.id == item.id and one.outcome is not None)
        assert ended.outcome is not None
        assert ended.outcome.executor == "simulated"
        assert limit_of(demo, uuid) < before
        says(story, "done in the simulated fleet")
        shown(page.get_by_text("What came of it"))
        shown(page.get_by_text("Temperature, change"))
        shown(page.get_by_text("approved by loopback").first)
        shown(page.get_by_text("carried out by simulated").first)

        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Audit").click()
        shown(page.get_by_text("The chain holds"))
        search = page.get_by_label("Host, GPU, decision id, words")
        search.fill(item.id)
        search.press("Enter")
        table = page.locator("table.tc")
        shown(table.get_by_text("loopback approved: Throttle").first)
        shown(table.get_by_text("Begun by simulated: Throttle").first)
        shown(table.get_by_text("Ended, ").first)
        shown(table.get_by_text("Effect ").first)
        shown(page.locator(".tc-sim").first)

    kinds = [entry.kind for entry in demo.service.story(item.id).entries]
    assert [kind for kind in kinds if kind != "verdict"] == [
        "decision", "approval", "execution_started", "verification", "verification", "outcome"
    ]  # fmt: skip
    assert verify(demo.settings.journal.path).ok


def test_an_undo_in_the_browser_gives_back_what_was_taken(chromium: Browser, dashboard: str, demo: Demo) -> None:
    done = stepped(demo, lambda one: one.outcome is not None and not one.undo_problem)
    before = limit_of(demo, done.subject.name)
    with opened(chromium, f"{dashboard}/?lang=en") as page:
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Decisions").click()
        search = page.get_by_label("Search sentence, host, rule, id")
        search.fill(done.id)
        search.press("Enter")
        page.get_by_text("All (").click()
        page.locator(f".st-key-row-{done.id} button").click()
        reason = page.get_by_label("Reason, kept in the journal")
        reason.fill("its job ends at noon")
        reason.press("Enter")
        page.locator(f".st-key-undo-{done.id} button").click()
        shown(page.get_by_text("Being undone: ").first)
        page.get_by_text("Open the decision that undoes it").click()
        says(page.locator(".tc-stand"), "Approved by loopback")
        undoing = demo.service.story(done.id).decision.undone_by
        for _ in range(MOST_STEPS):
            demo.step()
            if demo.service.story(undoing).decision.outcome is not None:
                break
        says(page.locator(".tc-stand"), "Done: restored")
    assert limit_of(demo, done.subject.name) > before
    asked = [entry for entry in demo.service.story(undoing).entries if entry.actor == "loopback"]
    assert [entry.kind for entry in asked] == ["decision", "approval"]
