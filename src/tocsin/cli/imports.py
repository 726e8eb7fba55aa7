"""`tocsin import`: telemetry that a site has already."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.cli.progress import with_bars
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from stamina.instrumentation import RetryDetails

    from tocsin.collector.prometheus_history.http import HistoryClient
    from tocsin.offline.import_history import ImportReport, ImportRequest


@click.group("import")
def import_() -> None:
    """Import telemetry that a site already has."""


def _headers(header: tuple[str, ...], bearer_token_file: Path | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    for one in header:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise InputError("--header", one, "is not NAME=VALUE", "write for example X-Scope-OrgID=site")
        headers[name.strip()] = value
    if bearer_token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {bearer_token_file.read_text(encoding='utf-8').strip()}"
        except OSError as error:
            remedy = "name a readable file"
            raise InputError("--bearer-token-file", str(bearer_token_file), str(error.strerror), remedy) from None
    return headers


def _say(line: str) -> None:
    click.echo(line, err=True)


def _tell_retry(details: RetryDetails) -> None:
    _say(f"{details.caused_by}; trying again in {details.wait_for:.0f} s")


@import_.command("prometheus")
@click.argument("url")
@click.option("--since", required=True, help="Start: an age such as 30d, or an ISO 8601 timestamp.")
@click.option("--until", default="0s", help="End, in the same format; default: now.")
@click.option("--step", help="Step of the queries such as 30s; default: half of the scrape interval, as measured.")
@click.option("--match", default="", help="Label selector that narrows the series, such as '{cluster=\"a\"}'.")
@click.option("--to", default="store", help="`store`, or a file for replay (.gz and .bz2 are compressed).")
@click.option("--bearer-token-file", type=click.Path(path_type=Path), help="File with a bearer token.")
@click.option("--header", multiple=True, help="Header NAME=VALUE for every request; may be repeated.")
@json_option
@pass_context
@with_bars
def prometheus(
    context: CliContext,
    url: str,
    since: str,
    until: str,
    step: str | None,
    match: str,
    to: str,
    bearer_token_file: Path | None,
    header: tuple[str, ...],
    as_json: bool,
) -> None:
    """Import the history of dcgm-exporter from a Prometheus, VictoriaMetrics, Thanos or Mimir at URL."""
    from tocsin.collector.prometheus_history.http import HistoryClient
    from tocsin.offline.import_history import ImportRequest, instant, span_ms

    now_ms = SystemClock().now_ms()
    start_ms, end_ms = instant(since, now_ms, "--since"), instant(until, now_ms, "--until")
    wanted = ImportRequest(start_ms, end_ms, match, span_ms(step, "--step") if step else None)
    with closing(HistoryClient(url, _headers(header, bearer_token_file))) as client:
        report = _import(context, client, wanted, to)
    show(as_json, report.as_json(), report.as_text().splitlines())


def _import(context: CliContext, client: HistoryClient, wanted: ImportRequest, to: str) -> ImportReport:
    from stamina.instrumentation import set_on_retry_hooks

    from tocsin.offline.import_history import import_to_file, import_to_store
    from tocsin.store.factory import open_store

    # The hooks of stamina's own choice write to standard output, where the summary goes.
    set_on_retry_hooks([_tell_retry])
    if to != "store":
        return import_to_file(client, wanted, Path(to), SystemClock(), _say)
    with closing(open_store(context.settings.store)) as store:
        store.init()
        return import_to_store(client, wanted, store, SystemClock(), _say)


COMMANDS: list[click.Command] = [import_]
