"""Commands on files and stores: config, rules, store, replay. Of them `rules record` alone asks a running brain."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context, show
from tocsin.cli.progress import with_bars
from tocsin.config.load import describe
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.client.models_rules import RuleRecord

existing = click.Path(path_type=Path)


@click.group()
def config() -> None:
    """Check and show settings."""


@config.command("check")
@click.argument("path", type=existing, required=False)
@json_option
@pass_context
def config_check(context: CliContext, path: Path | None, as_json: bool) -> None:
    """Check the settings file PATH, the environment, the names of sources and executors, and the rule file."""
    from tocsin.actions.model.earning import check_waived, waived_in_words
    from tocsin.actions.planning.foresight import PLANNED
    from tocsin.config.load import check_plugins, load_settings
    from tocsin.rules.load import load_rules

    settings = load_settings(path, secrets=context.secrets) if path else context.settings
    check_plugins(settings)
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    waived = settings.actions.earn_waived
    check_waived(waived, {*PLANNED, *(rule.name for rule in rules)})
    count = sum(1 for _ in describe())
    if said := waived_in_words(waived):
        click.echo(f"warning: {said}", err=True)
    facts: dict[str, object] = {"earn_waived": waived} if waived else {}
    done(as_json, f"{count} settings, {len(rules)} rules", "", settings=count, rules=len(rules), **facts)


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="No effect: settings are always printed as JSON.")
@pass_context
def config_show(context: CliContext, as_json: bool) -> None:  # noqa: ARG001  # taken so that every command takes it
    """Print every setting as JSON, secrets hidden."""
    click.echo(context.settings.model_dump_json(indent=2))


@click.group()
def rules() -> None:
    """Check and list rules."""


@rules.command("check")
@click.argument("path", type=existing)
@json_option
def rules_check(path: Path, as_json: bool) -> None:
    """Check the rule file PATH against the metric table."""
    from tocsin.rules.load import load_rules

    count = len(load_rules(path))
    done(as_json, f"{count} rules", rules=count)


@rules.command("list")
@json_option
@pass_context
def rules_list(context: CliContext, as_json: bool) -> None:
    """List the rules in force."""
    from tocsin.rules.load import load_rules

    settings = context.settings.rules
    rows = [
        {
            "name": rule.name,
            "severity": rule.table.severity.value,
            "category": rule.table.category.value,
            "action": str(rule.table.action),
            "mode": rule.table.mode.value,
            "meaning": rule.meaning(),
            "level": rule.level.value,
        }
        for rule in load_rules(settings.path, settings.xid_overrides)
    ]
    show(as_json, rows, ("\t".join(row.values()) for row in rows))


@rules.command("record")
@api_options
@json_option
@pass_context
def rules_record(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Show how far each rule may go, its settled cases, and what is missing before it acts alone."""
    with connect(context, api_url, token) as client:
        found = client.rule_records()
    show(as_json, [one.model_dump(mode="json") for one in found], map(_record_line, found), client.base_url)


def _record_line(one: RuleRecord) -> str:
    mode = one.mode.value if one.mode is one.mode_set else f"{one.mode} (set to {one.mode_set})"
    words = [one.rule + (" (simulated)" if one.simulated else ""), mode]
    words.append(f"right {one.right} of {one.settled}")
    words.append(f"goal reached {one.reached} of {one.measured}")
    words.append("waived: it needs no record" if one.waived else one.lacking or "nothing is missing")
    return "\t".join(words)


@click.group()
def store() -> None:
    """Prepare, back up and prune the store."""


@store.command("init")
@json_option
@pass_context
def store_init(context: CliContext, as_json: bool) -> None:
    """Create what the store needs: file and tables, or bucket and retention."""
    from tocsin.store.factory import open_store

    with closing(open_store(context.settings.store)) as opened:
        opened.init()
    kind = str(context.settings.store.kind)
    done(as_json, f"{kind} is ready", store=kind)


@store.command("prune")
@json_option
@pass_context
def store_prune(context: CliContext, as_json: bool) -> None:
    """Compact the store, roll up what is old, and remove what is older than the retention."""
    from tocsin.store.factory import open_store
    from tocsin.store.upkeep import look_after

    settings = context.settings.store
    with closing(open_store(settings)) as opened:
        opened.init()
        kept = look_after(opened, settings, SystemClock().now_ms())
    said = f"{kept.removed} rows removed, {kept.compacted} compacted, {kept.rolled} rolled up, {kept.joined} joined"
    figures = {name: getattr(kept, name) for name in ("removed", "compacted", "rolled", "joined")}
    done(as_json, said, **figures)


@store.command("backup")
@click.argument("target", type=existing)
@json_option
@pass_context
def store_backup(context: CliContext, target: Path, as_json: bool) -> None:
    """Copy the embedded store to TARGET while it may be in use."""
    from tocsin.store.embedded.store import SqliteStore

    with closing(SqliteStore(_embedded(context))) as source:
        source.init()
        source.backup(target)
    done(as_json, str(target), target=str(target))


@store.command("restore")
@click.argument("source", type=existing)
@json_option
@pass_context
def store_restore(context: CliContext, source: Path, as_json: bool) -> None:
    """Put the backup SOURCE in place of the embedded store; the brain must not run."""
    from tocsin.store.embedded.backup import restore

    restore(source, _embedded(context))
    path = str(context.settings.store.path)
    done(as_json, path, path=path)


def _embedded(context: CliContext) -> Path:
    settings = context.settings.store
    if settings.kind != "sqlite":
        raise InputError("store.kind", str(settings.kind), "has no file", "use the server's own backup")
    return settings.path


@click.command()
@click.argument("paths", nargs=-1, required=True, type=existing)
@click.option("--incidents", type=existing, help="CSV file of logged incidents to score the alerts against.")
@click.option("--live", is_flag=True, help="Run the whole service over it, and score what it tells people.")
@json_option
@pass_context
@with_bars
def replay(context: CliContext, paths: tuple[Path, ...], incidents: Path | None, live: bool, as_json: bool) -> None:
    """Run the rules over recorded telemetry (PATHS) and score their alerts against logged incidents.

    With --live the recording goes through the running service, with store, models, decisions and notifications, and
    the notifications are scored.
    """
    if live:
        from tocsin.runtime.live_replay import run_live_replay

        said = run_live_replay(paths, incidents, context.settings)
        show(as_json, said.as_json(), said.as_text().splitlines())
        return
    from tocsin.offline.replay import run_replay
    from tocsin.rules.load import load_rules

    settings = context.settings.rules
    report = run_replay(paths, incidents, load_rules(settings.path, settings.xid_overrides))
    for problem in report.problems:
        click.echo(f"tocsin: {problem}", err=True)
    show(as_json, report.as_json(), report.as_text().splitlines())


COMMANDS: list[click.Command] = [config, rules, store, replay]
