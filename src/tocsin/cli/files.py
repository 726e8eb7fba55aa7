"""Commands on files and stores: config, store, journal, rules, replay. None of them needs a running brain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import Context, dump, json_option, pass_context
from tocsin.config.load import describe
from tocsin.domain.clock import SystemClock, from_iso, to_iso
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.journal.export import Format

existing = click.Path(path_type=Path)


@click.group()
def config() -> None:
    """Check and show settings."""


@config.command("check")
@click.argument("path", type=existing, required=False)
@pass_context
def config_check(context: Context, path: Path | None) -> None:
    """Check the settings file PATH, the environment and the rule file that they name."""
    from tocsin.config.load import load_settings
    from tocsin.rules.load import load_rules

    settings = load_settings(path, secrets=context.secrets) if path else context.settings
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    click.echo(f"ok: {sum(1 for _ in describe())} settings, {len(rules)} rules")


@config.command("show")
@pass_context
def config_show(context: Context) -> None:
    """Print every setting as JSON, secrets hidden."""
    click.echo(context.settings.model_dump_json(indent=2))


@click.group()
def rules() -> None:
    """Check and list rules."""


@rules.command("check")
@click.argument("path", type=existing)
def rules_check(path: Path) -> None:
    """Check the rule file PATH against the metric table."""
    from tocsin.rules.load import load_rules

    click.echo(f"ok: {len(load_rules(path))} rules")


@rules.command("list")
@pass_context
def rules_list(context: Context) -> None:
    """List the rules in force."""
    from tocsin.rules.load import load_rules

    settings = context.settings.rules
    for rule in load_rules(settings.path, settings.xid_overrides):
        table = rule.table
        click.echo(f"{rule.name}\t{table.severity}\t{table.category}\t{table.action}\t{rule.mode}\t{rule.meaning()}")


@click.group()
def store() -> None:
    """Prepare, back up and prune the store."""


@store.command("init")
@pass_context
def store_init(context: Context) -> None:
    """Create what the store needs: file and tables, or bucket and retention."""
    from tocsin.store.factory import open_store

    opened = open_store(context.settings.store)
    opened.init()
    opened.close()
    click.echo(f"ok: {context.settings.store.kind} is ready")


@store.command("prune")
@pass_context
def store_prune(context: Context) -> None:
    """Compact the store, roll up what is old, and remove what is older than the retention."""
    from tocsin.store.factory import open_store
    from tocsin.store.upkeep import look_after

    settings = context.settings.store
    opened = open_store(settings)
    opened.init()
    done = look_after(opened, settings, SystemClock().now_ms())
    opened.close()
    click.echo(
        f"ok: {done.removed} rows removed, {done.compacted} compacted, {done.rolled} rolled up, {done.joined} joined"
    )


@store.command("backup")
@click.argument("target", type=existing)
@pass_context
def store_backup(context: Context, target: Path) -> None:
    """Copy the embedded store to TARGET while it may be in use."""
    from tocsin.store.sqlite import SqliteStore

    source = SqliteStore(_embedded(context))
    source.init()
    source.backup(target)
    source.close()
    click.echo(f"ok: {target}")


@store.command("restore")
@click.argument("source", type=existing)
@pass_context
def store_restore(context: Context, source: Path) -> None:
    """Put the backup SOURCE in place of the embedded store; the brain must not run."""
    from tocsin.store.sqlite import restore

    restore(source, _embedded(context))
    click.echo(f"ok: {context.settings.store.path}")


def _embedded(context: Context) -> Path:
    settings = context.settings.store
    if settings.kind != "sqlite":
        raise InputError("store.kind", settings.kind.value, "has no file", "use the server's own backup")
    return settings.path


@click.group()
def journal() -> None:
    """Verify, read, back up and restore the journal."""


def _journal_path(context: Context, path: Path | None) -> Path:
    found = path or context.settings.journal.path
    if not found.exists():
        raise InputError("journal", str(found), "does not exist", "name the journal's file or set journal.path")
    return found


@journal.command("verify")
@click.argument("path", type=existing, required=False)
@json_option
@pass_context
def journal_verify(context: Context, path: Path | None, as_json: bool) -> int:
    """Check the hash chain of the journal at PATH; exit 1 where it was edited or cut short."""
    from tocsin.journal.verify import verify

    result = verify(_journal_path(context, path))
    if as_json:
        dump({"verified": result.ok, "events": result.events, "problem": result.problem})
    else:
        click.echo(
            f"{'ok' if result.ok else 'BROKEN'}: {result.events} events"
            + (f"; {result.problem}" if result.problem else "")
        )
    return 0 if result.ok else 1


@journal.command("show")
@click.argument("path", type=existing, required=False)
@click.option("--kind", multiple=True, help="Only entries of this kind; may be repeated.")
@click.option("--after", default=0, help="Only entries after this number.")
@pass_context
def journal_show(context: Context, path: Path | None, kind: tuple[str, ...], after: int) -> None:
    """Print the entries of the journal at PATH, one JSON object a line."""
    from tocsin.journal.reader import read_entries

    for entry in read_entries(_journal_path(context, path), after=after, kinds=kind or None):
        click.echo(
            json.dumps(
                {
                    "seq": entry.seq,
                    "at": to_iso(entry.at_ms),
                    "kind": entry.kind,
                    "actor": entry.actor,
                    "payload": entry.payload,
                },
                ensure_ascii=False,
            )
        )


@journal.command("export")
@click.argument("path", type=existing, required=False)
@click.option("--format", "form", type=click.Choice(["jsonl", "cef"]), default="jsonl", help="Default: jsonl.")
@click.option("--since", help="Only entries from this instant on, RFC 3339 in UTC.")
@click.option("--until", help="Only entries before this instant.")
@click.option("--after", default=0, help="Only entries after this number.")
@click.option("--kind", multiple=True, help="Only entries of this kind; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="New file to write; default: standard output.")
@pass_context
def journal_export(
    context: Context,
    path: Path | None,
    form: Format,
    since: str | None,
    until: str | None,
    after: int,
    kind: tuple[str, ...],
    output: Path | None,
) -> None:
    """Print the entries of the journal at PATH for other systems: JSON lines or Common Event Format."""
    from tocsin.journal.export import export

    lines = export(
        _journal_path(context, path),
        form,
        since_ms=_instant("--since", since),
        until_ms=_instant("--until", until),
        after=after,
        kinds=_kinds(kind),
    )
    if output is None:
        for line in lines:
            click.echo(line)
        return
    if output.exists():
        raise InputError("--output", str(output), "exists", "name a new file")
    count = 0
    # Under its name only once it is whole: what collects such files must not take half of one.
    part = output.with_name(output.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    part.rename(output)
    click.echo(f"ok: {count} entries in {output}", err=True)


def _instant(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return from_iso(text)
    except ValueError:
        remedy = "use RFC 3339 in UTC, such as 2026-11-21T03:54:16Z"
        raise InputError(option, text, "is no instant", remedy) from None


def _kinds(given: tuple[str, ...]) -> tuple[str, ...] | None:
    from tocsin.journal.kinds import EntryKind

    known = [kind.value for kind in EntryKind]
    for kind in given:
        if kind not in known:
            raise InputError("--kind", kind, "is no kind of entry", f"use one of {', '.join(known)}")
    return given or None


@journal.command("backup")
@click.argument("target", type=existing)
@pass_context
def journal_backup(context: Context, target: Path) -> None:
    """Copy the journal to TARGET while it may be in use."""
    from tocsin.journal.backup import backup

    backup(_journal_path(context, None), target)
    click.echo(f"ok: {target}")


@journal.command("restore")
@click.argument("source", type=existing)
@pass_context
def journal_restore(context: Context, source: Path) -> None:
    """Verify the backup SOURCE and put it in place of the journal; the brain must not run."""
    from tocsin.journal.backup import restore

    restore(source, context.settings.journal.path)
    click.echo(f"ok: {context.settings.journal.path}")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=existing)
@click.option("--incidents", type=existing, help="CSV of logged incidents to score the alerts against.")
@json_option
@pass_context
def replay(context: Context, paths: tuple[Path, ...], incidents: Path | None, as_json: bool) -> None:
    """Run the rules over recorded telemetry (PATHS) at full speed and score their alerts by the ticket clock."""
    from tocsin.rules.load import load_rules
    from tocsin.runtime.replay import run_replay

    settings = context.settings.rules
    report = run_replay(paths, incidents, load_rules(settings.path, settings.xid_overrides))
    for problem in report.problems:
        click.echo(f"tocsin: {problem}", err=True)
    if as_json:
        dump(report.as_json())
    else:
        click.echo(report.as_text(), nl=False)


COMMANDS: list[click.Command] = [config, rules, store, journal, replay]
