"""`tocsin top`: the fleet, or one node, live in a terminal."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, dump, json_option, pass_context, spans_cells
from tocsin.client import whole
from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.client.models import GpuDetail
from tocsin.client.whole_cards import fleet_cards
from tocsin.domain.clock import HOUR, SECOND, SystemClock, from_iso, to_iso
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import configure_logging
from tocsin.terminal import text
from tocsin.terminal.look import CHARTED, Detail, FleetFeed, Look

SPAN_MS = 6 * HOUR
POINTS = 360
MOST_CARDS = 50
SHOWN = 8
"""Most sentences of one kind in a GPU's view."""


class ApiFeed:
    """What the brain behind `client` answers; the client is closed with it."""

    def __init__(self, client: Client) -> None:
        self.origin = f"brain {client.base_url}"
        self._client = client
        self._role: str | None = None
        self._whole: bool | None = None
        self._cells: dict[str, str] = {}

    def look(self) -> Look:
        if self._role is None:
            self._role = self._client.me().role
        try:
            summary = self._client.summary()
        except Denied:
            # A log-in that has ended, or a role that was changed: asked anew at the next look.
            self._role = None
            raise
        if self._whole is None:
            self._whole = spans_cells(self._client)
        if self._whole:
            return self._all_cells(self._role)
        return Look(
            origin=self.origin,
            at=summary.now,
            gpus=tuple(self._client.gpus()),
            summary=summary,
            incidents=tuple(self._client.incidents()),
            decisions=tuple(self._client.decisions()),
            cards=tuple(self._client.cards().items),
            role=self._role,
        )

    def _all_cells(self, role: str) -> Look:
        """The same over all cells of the fleet; what is missing is a note."""
        found, cards = self._client.cells_summary(), self._client.cells_cards()
        incidents, decisions = self._client.cells_incidents(), self._client.cells_decisions()
        gpus = self._client.cells_gpus()
        # The own cell last: of a GPU that two know, its word is at hand.
        order = sorted(gpus.answers, key=lambda name: any(one.own for one in gpus.cells if one.cell == name))
        self._cells = {gpu.uuid: name for name in order for gpu in gpus.answers[name]}
        summary = whole.whole_summary(found.answers)
        lacking = {one.cell: one for part in (found, cards, incidents, decisions, gpus) for one in whole.missing(part)}
        said = [f"cell {name} is {one.state}: {one.detail}" for name, one in sorted(lacking.items())]
        return Look(
            origin=f"{self.origin} for {len(found.cells)} cells{', PARTIAL' if said else ''}",
            at=summary.now,
            gpus=tuple(whole.every_gpu(gpus.answers)),
            summary=summary,
            incidents=tuple(whole.flat(incidents.answers)),
            decisions=tuple(whole.flat(decisions.answers)),
            cards=tuple(one.card for one in fleet_cards(cards.answers, MOST_CARDS)[0]),
            role=role,
            notes=tuple(said),
        )

    def detail(self, uuid: str) -> Detail:
        client = self._client.at(self._cells.get(uuid, ""))
        found = client.gpu(uuid)
        end_ms = from_iso(client.summary().now)
        series = client.series(uuid, CHARTED, end_ms - SPAN_MS, end_ms, POINTS)
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


@click.command()
@click.option("--local", is_flag=True, help="This node's own GPUs, without a brain.")
@click.option(
    "--source",
    shell_complete=values.sources,
    help="With --local: where readings come from; default: setting agent.source.",
)
@click.option("--agent", metavar="URL", help="The node whose agent has its /metrics at this URL, without a brain.")
@click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--filter", "words", default="", help="Only GPUs that fit, for example 'temp>80 pool:train'.")
@click.option("--rows", type=click.IntRange(0), default=40, show_default=True, help="Most GPUs of --once; 0: all.")
@click.option("--once", is_flag=True, help="Print one look and end.")
@api_options
@json_option
@pass_context
def top(
    context: CliContext,
    local: bool,
    source: str | None,
    agent: str | None,
    interval: float,
    words: str,
    rows: int,
    once: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Watch the fleet live: every GPU in a line, what needs attention, decisions to approve or reject, nodes.

    Asks the brain; with --local or --agent a single node without one. `?` shows the keys. --once prints one look, with
    --json the whole of it; JSON needs no --once.
    """
    from tocsin.terminal.rows import gpu_filter

    test = gpu_filter(words)
    once = once or as_json
    if not once and not sys.stdout.isatty():
        raise InputError("tocsin top", "standard output", "is no terminal", "add --once, with --json for a program")
    configure_logging("error", context.settings.log.format)
    with closing(_feed(context, local, source, agent, interval, api_url, token)) as feed:
        if not once:
            _live(feed, interval, words)
            return
        look = feed.look()
    if as_json:
        shown = look.as_json()
        dump(shown | {"gpus": [one.model_dump(mode="json") for one in look.gpus if test(one)]})
        return
    from tocsin.terminal.plain import lines

    for line in lines(look, test, rows):
        click.echo(line)


def _feed(
    context: CliContext,
    local: bool,
    source: str | None,
    agent: str | None,
    interval: float,
    api_url: str | None,
    token: str | None,
) -> FleetFeed:
    given = [name for name, one in (("--local", local), ("--agent", agent), ("--api-url", api_url)) if one]
    if len(given) > 1:
        raise InputError(given[0], " ".join(given), "are different places to look at", "give one of them")
    if source and not local:
        raise InputError("--source", source, "belongs to --local", "add --local")
    clock = SystemClock()
    if local:
        from tocsin.runtime.agent.node_view import local_feed

        return local_feed(context.settings, source or context.settings.agent.source, clock, interval)
    if agent:
        from tocsin.runtime.agent.node_view import AgentPage, agent_feed

        return agent_feed(context.settings, AgentPage(agent), clock, interval)

    return ApiFeed(connect(context, api_url, token))


def _live(feed: FleetFeed, interval: float, words: str) -> None:
    from tocsin.terminal.screen.app import TopApp

    TopApp(feed, SystemClock(), interval, words).run()


COMMANDS: list[click.Command] = [top]
