"""The view in a terminal, used by keys and mouse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tocsin.client.errors import Denied
from tocsin.terminal.screen.app import TopApp
from tocsin.terminal.screen.dialogs import GpuScreen
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.screens import FakeFeed, on_screen, screen_text, settle


def first(app: TopApp, line: int = 5) -> str:
    return screen_text(app)[line]


def test_tables_turn_by_tab_and_number() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        seen = []
        for key in ("tab", "tab", "tab", "tab", "shift+tab", "2"):
            await pilot.press(key)
            seen.append(app.grid.table.name)
        assert seen == ["attention", "decisions", "nodes", "gpus", "nodes", "attention"]

    on_screen(FakeFeed(), play)


def test_lines_are_ordered_by_a_column_and_turned() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        while app.grid.sorted_by != "TEMP":
            await pilot.press("s")
        heat = [gpu.temperature_celsius for gpu in app.grid._lines]
        known = [value for value in heat if value is not None]
        assert known == sorted(known, reverse=True)
        assert heat[-1] is None, "what has no value comes last"
        assert "TEMP▼" in first(app, 4).replace(" ", "")
        await pilot.press("r")
        assert app.grid.selected is not None
        assert app.grid._lines[0].temperature_celsius == min(known)
        assert app.grid._lines[-1].temperature_celsius is None
        await pilot.press("S", "S")
        assert app.grid.sorted_by == "UTIL"

    on_screen(FakeFeed(), play)


def test_a_heading_orders_by_a_click_and_a_line_is_selected_by_one() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.click(app.grid, offset=(4, 0))
        assert app.grid.sorted_by == "GPU"
        assert "gpu-node-01 GPU 0" in first(app)
        await pilot.click(app.grid, offset=(4, 0))
        assert "gpu-node-08 GPU 7" in first(app)
        await pilot.click(app.grid, offset=(4, 3))
        assert app.grid.selected is not None
        assert app.grid.selected.index == 5

    on_screen(FakeFeed(), play)


def test_the_selection_stays_with_its_gpu_and_at_the_top_with_the_worst() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down")
        before = app.grid.selected
        feed.shown = replace(feed.shown, gpus=tuple(gpu for gpu in feed.shown.gpus if gpu.uuid != fleet.uuid(5, 2)))
        await pilot.press("f5")
        await settle(app, pilot)
        assert app.grid.selected == before
        await pilot.press("home")
        feed.shown = FakeFeed().shown
        await pilot.press("f5")
        await settle(app, pilot)
        assert app.grid.selected is not None
        assert app.grid.selected.uuid == fleet.uuid(5, 2)

    on_screen(feed, play)


@pytest.mark.parametrize(
    ("words", "count"),
    [("", 64), ("gpu-node-03", 8), ("temp>80", 1), ("mem>90 pool:training", 1), ("state:lost", 1), ("chance>50", 2)],
)
def test_a_filter_leaves_what_fits(words: str, count: int) -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert app.grid.count == 64
        await pilot.press("slash", *words, "enter")
        assert app.grid.count == count
        await pilot.press("escape")
        assert app.grid.count == 64

    on_screen(FakeFeed(), play)


def test_a_filter_from_the_start_and_one_that_is_none() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert app.grid.count == 1
        await pilot.press("escape", "slash", *"heat>3")
        await settle(app, pilot)
        assert app.query_one("#filter", Input).value == "heat>3"
        assert any("compare one of" in line for line in screen_text(app))

    on_screen(FakeFeed(), play, words="temp>80")


def test_a_node_opens_its_gpus() -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("4", "enter")
        await settle(app, pilot)
        assert app.grid.table.name == "gpus"
        assert {gpu.host for gpu in app.grid._lines} == {"gpu-node-06"}

    on_screen(FakeFeed(), play)


def test_a_gpu_in_full_is_asked_for_again_with_every_look() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "down", "enter")
        await settle(app, pilot)
        assert isinstance(app.screen, GpuScreen)
        assert any("Core temperature 86.4 C" in line for line in screen_text(app))
        hot = fleet.uuid(*fleet.HOT)
        cooled = tuple(
            gpu.model_copy(update={"finding": "It has cooled down"}) if gpu.uuid == hot else gpu
            for gpu in feed.shown.gpus
        )
        feed.shown = replace(feed.shown, gpus=cooled)
        app.action_ask()
        await settle(app, pilot)
        assert any("It has cooled down" in line for line in screen_text(app))
        await pilot.press("escape")
        assert not isinstance(app.screen, GpuScreen)

    on_screen(feed, play)


def test_approving_wants_a_yes_and_rejecting_a_reason() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        place, drain = (decision.id for decision in feed.shown.decisions[:2])
        await pilot.press("3", "a", "escape")
        await settle(app, pilot)
        assert feed.settled == []
        await pilot.press("a", "y")
        await settle(app, pilot)
        assert feed.settled == [(place, True, "")]
        assert app.grid.count == 2, "it is asked again at once"
        await pilot.press("x", *"not_now", "enter")
        await settle(app, pilot)
        assert feed.settled[1:] == [(drain, False, "not_now")]

    on_screen(feed, play)


def test_who_may_not_decide_is_told_how_to() -> None:
    feed = FakeFeed(role="viewer")

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "a")
        await settle(app, pilot)
        assert any("may not decide" in line for line in screen_text(app))
        await pilot.press("y")
        await settle(app, pilot)
        assert feed.settled == []

    on_screen(feed, play)


def test_a_decision_that_waits_for_nobody_and_a_table_without_decisions_offer_nothing() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "y")
        await pilot.press("3", "end", "a", "y")
        await settle(app, pilot)
        assert any("nobody is asked" in line for line in screen_text(app))
        assert feed.settled == []

    on_screen(feed, play)


def test_a_refusal_of_the_brain_is_shown() -> None:
    feed = FakeFeed()

    def refuse(_decision_id: str) -> None:
        raise Denied("token night may not drain in pool training")

    feed.approve = refuse  # type: ignore[method-assign]

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "a", "y")
        await settle(app, pilot)
        assert any("token night may not drain" in line for line in screen_text(app))

    on_screen(feed, play)


def test_an_outage_is_said_and_ends() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        feed.go_away()
        await pilot.press("f5")
        await settle(app, pilot)
        assert "NO ANSWER for" in first(app, 2)
        assert "no brain answers at http://fake" in first(app, 2)
        assert app.grid.count == 64, "what was seen stays"
        await pilot.press("enter")
        await settle(app, pilot)
        assert any("no brain answers" in line for line in screen_text(app))
        await pilot.press("escape")
        feed.problem = None
        await pilot.press("f5")
        await settle(app, pilot)
        assert "NO ANSWER" not in "\n".join(screen_text(app))

    on_screen(feed, play)


def test_no_answer_at_the_start_is_no_end() -> None:
    feed = FakeFeed()
    feed.go_away()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert "no brain answers" in screen_text(app)[1]
        await pilot.press("down", "enter", "s", "4", "a", "tab")
        feed.problem = None
        await pilot.press("f5")
        await settle(app, pilot)
        assert "64 GPUs" in first(app, 1)

    on_screen(feed, play)


def test_states_are_told_without_colour_and_light_is_a_key_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert app.no_color
        dark = screen_text(app)
        await pilot.press("d")
        assert not app.current_theme.dark
        assert screen_text(app) == dark
        assert [line[1] for line in dark[5:11]] == ["✕", "◆", "▲", "▲", "▲", "?"]

    on_screen(FakeFeed(), play)


def test_only_one_look_is_asked_for_at_a_time() -> None:
    feed = FakeFeed()

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        assert feed.looks == 1
        app.action_ask()
        app.action_ask()
        await settle(app, pilot)
        assert feed.looks == 2

    on_screen(feed, play)


def test_ten_thousand_gpus_are_one_screen_of_work() -> None:
    feed = FakeFeed(hosts=1250)

    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        made: list[int] = []
        render = app.grid.render_line

        def counted(y: int) -> object:
            made.append(y)
            return render(y)

        app.grid.render_line = counted  # type: ignore[method-assign,assignment]
        await pilot.press("end")
        await settle(app, pilot)
        assert app.grid.count == 10_000
        assert 0 < len(made) <= 4 * app.size.height
        assert "gpu-node-999 GPU 7" in "\n".join(screen_text(app))

    on_screen(feed, play)
