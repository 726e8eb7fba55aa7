"""`tocsin journal`: verify, read, export, archive, back up and restore the journal, without a running brain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, done, dump, json_option, pass_context, show
from tocsin.cli.progress import with_bars
from tocsin.domain.atomic_file import atomic_file
from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.journal.export import Format
    from tocsin.journal.port import JournalPast
    from tocsin.journal.postgres.connections import CellDatabase

existing = click.Path(path_type=Path)
key_option = click.option(
    "--key-file", type=click.Path(path_type=Path), help="Key of its seal; default: journal.key_file, for that journal."
)


@click.group()
def journal() -> None:
    """Verify, read, archive, back up and restore the journal."""


def _past(context: CliContext, path: Path | None) -> JournalPast:
    """The journal in the file `path`, or that of the settings, in a file or in a database."""
    if path is None and context.settings.journal.url.get_secret_value():
        from tocsin.journal.postgres.past import PostgresPast

        past = PostgresPast(_database(context))
        past.see()
        return past
    from tocsin.journal.file_past import FilePast

    return FilePast(_journal_path(context, path))


def _database(context: CliContext) -> CellDatabase:
    from tocsin.journal.postgres.connections import open_database

    database = open_database(context.settings.journal)
    click.get_current_context().call_on_close(database.close)
    return database


def _journal_path(context: CliContext, path: Path | None) -> Path:
    """The file of the journal. Raises InputError where it is in a database, or there is none."""
    if path is None and context.settings.journal.url.get_secret_value():
        raise InputError("journal.url", "...", "is a database and no file", "name a file, or unset journal.url")
    found = path or context.settings.journal.path
    if not found.exists():
        remedy = "name the journal's file or set journal.path; `tocsin journal verify --brain` asks a running brain"
        raise InputError("journal", str(found), "does not exist", remedy)
    return found


@journal.command("verify")
@click.argument("path", type=existing, required=False)
@click.option("--witness", "ask", is_flag=True, help="Also compare it with what its witnesses have seen.")
@click.option("--brain", is_flag=True, help="Ask a running brain to check its own journal, slice by slice; for admins.")
@api_options
@key_option
@json_option
@pass_context
@with_bars
def journal_verify(
    context: CliContext,
    path: Path | None,
    ask: bool,
    brain: bool,
    api_url: str | None,
    token: str | None,
    key_file: Path | None,
    as_json: bool,
) -> int:
    """Check the hash chain of the journal at PATH with its archive; exit 1 where it was edited or cut short."""
    if brain or api_url:
        if path or key_file:
            raise InputError("--brain", str(path or key_file), "is not the brain's to read", "leave it out, or --brain")
        return _verified_by_brain(context, api_url, token, ask, as_json)
    found = _past(context, path)
    result = found.verify(_key(context, path, key_file))
    problem = result.problem or (_against_witnesses(context, found) if ask else "")
    return _say_verified(result.events, problem, as_json)


def _verified_by_brain(context: CliContext, api_url: str | None, token: str | None, ask: bool, as_json: bool) -> int:
    with connect(context, api_url, token) as client:
        result = client.verify_journal()
        problem = result.problem or (client.summary().journal_witness if ask else "")
    return _say_verified(result.events, problem, as_json, client.base_url)


def _say_verified(events: int, problem: str, as_json: bool, brain: str = "") -> int:
    said = f"{'BROKEN' if problem else 'ok'}: {events} events"
    document = {"verified": not problem, "events": events, "problem": problem}
    show(as_json, document, [said + (f"; {problem}" if problem else "")], brain)
    return 1 if problem else 0


def _key(context: CliContext, path: Path | None, key_file: Path | None) -> bytes:
    """The key in `key_file`, or that of the settings for the journal that they name; empty where there is none."""
    from tocsin.journal.files import load_key

    own = path is None or path.absolute() == context.settings.journal.path.absolute()
    chosen = key_file or (context.settings.journal.key_file if own else None)
    return b"" if chosen is None else load_key(chosen)


def _against_witnesses(context: CliContext, journal: JournalPast) -> str:
    """What the witnesses of the settings have against `journal`; empty where nothing."""
    from tocsin.journal.witness import problem_of
    from tocsin.runtime.brain.witnesses import open_witnesses

    witnesses = open_witnesses(context.settings)
    if not witnesses:
        remedy = "set journal.witness or kubernetes.lease, or leave out --witness"
        raise InputError("journal.witness", "", "is not set", remedy)
    found = ((witness.name, problem_of(journal, witness.read())) for witness in witnesses)
    return "; ".join(f"witness {name}: {problem}" for name, problem in found if problem)


@journal.command("seal")
@click.argument("path", type=existing, required=False)
@key_option
@json_option
@pass_context
def journal_seal(context: CliContext, path: Path | None, key_file: Path | None, as_json: bool) -> None:
    """Seal the journal at PATH as it stands with the key of journal.key_file; the brain must not run.

    For a journal or a backup from before the key was set. From then on nobody can rewrite it without the key.
    """
    from tocsin.journal.files import load_key
    from tocsin.journal.journal import seal

    chosen = key_file or context.settings.journal.key_file
    if chosen is None:
        raise InputError("journal.key_file", "", "is not set", "set it, or use --key-file")
    if path is None and context.settings.journal.url.get_secret_value():
        from tocsin.journal.postgres.copy import seal as seal_database

        name = (database := _database(context)).name
        result = seal_database(database, load_key(chosen))
    else:
        name = str(found := _journal_path(context, path))
        result = seal(found, load_key(chosen))
    if not result.ok:
        raise InputError("journal", name, result.problem, "restore it from a backup")
    done(as_json, name, path=name)


@journal.command("show")
@click.argument("path", type=existing, required=False)
@click.option(
    "--kind", multiple=True, shell_complete=values.entry_kinds, help="Only entries of this kind; may be repeated."
)
@click.option("--after", default=0, help="Only entries after this sequence number.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of an object a line.")
@pass_context
def journal_show(context: CliContext, path: Path | None, kind: tuple[str, ...], after: int, as_json: bool) -> None:
    """Print the entries of the journal at PATH, one JSON object a line."""
    entries = _past(context, path).entries(after=after, kinds=_kinds(kind))
    rows = (
        {"seq": one.seq, "at": to_iso(one.at_ms), "kind": one.kind, "actor": one.actor, "payload": one.payload}
        for one in entries
    )
    if as_json:
        dump(list(rows))
        return
    for row in rows:
        click.echo(json.dumps(row, ensure_ascii=False))


@journal.command("export")
@click.argument("path", type=existing, required=False)
@click.option("--format", "form", type=click.Choice(["jsonl", "cef"]), default="jsonl", help="Default: jsonl.")
@click.option("--since", help="Only entries at or after this time, RFC 3339 in UTC.")
@click.option("--until", help="Only entries before this time.")
@click.option("--after", default=0, help="Only entries after this sequence number.")
@click.option(
    "--kind", multiple=True, shell_complete=values.entry_kinds, help="Only entries of this kind; may be repeated."
)
@click.option("--output", type=click.Path(path_type=Path), help="New file to write; default: standard output.")
@pass_context
def journal_export(
    context: CliContext,
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
        _past(context, path),
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
    with atomic_file(output) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
            count += 1
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
    from tocsin.domain.entry import EntryKind

    known = [kind.value for kind in EntryKind]
    for kind in given:
        if kind not in known:
            raise InputError("--kind", kind, "is no kind of entry", f"use one of {', '.join(known)}")
    return given or None


@journal.command("archive")
@click.option("--keep", type=click.IntRange(min=1), help="Newest entries that stay; default: journal.keep_entries.")
@json_option
@pass_context
def journal_archive(context: CliContext, keep: int | None, as_json: bool) -> None:
    """Move old entries into the archive beside the journal; the brain must not run.

    A running brain does it by itself, a file every five minutes; this does all that is due, and gives the room back to
    the file system.
    """
    from contextlib import closing

    from tocsin.domain.clock import SystemClock
    from tocsin.journal.archive import archive_next
    from tocsin.journal.journal import Journal

    settings, files = context.settings.journal, 0
    with closing(Journal.open(_journal_path(context, None), SystemClock(), settings.key_file)) as opened:
        while archive_next(opened, keep or settings.keep_entries) is not None:
            files += 1
        opened.compact()
        first, head = opened.first_here(), opened.head
    said = f"{files} files archived; entries {first} to {head} stand in {settings.path}"
    done(as_json, said, files=files, first=first, head=head, path=str(settings.path))


@journal.command("backup")
@click.argument("target", type=existing)
@json_option
@pass_context
def journal_backup(context: CliContext, target: Path, as_json: bool) -> None:
    """Copy the journal to TARGET while it may be in use."""
    key = _key(context, None, None)
    if context.settings.journal.url.get_secret_value():
        from tocsin.journal.postgres.copy import backup as backup_database
        from tocsin.journal.postgres.past import PostgresPast

        backup_database(PostgresPast(_database(context)), target, key)
    else:
        from tocsin.journal.backup import backup

        backup(_journal_path(context, None), target, key)
    done(as_json, str(target), target=str(target))


@journal.command("restore")
@click.argument("source", type=existing)
@json_option
@pass_context
def journal_restore(context: CliContext, source: Path, as_json: bool) -> None:
    """Verify the backup SOURCE and put it in place of the journal; the brain must not run."""
    key, path = _key(context, None, None), str(context.settings.journal.path)
    if context.settings.journal.url.get_secret_value():
        from tocsin.journal.postgres.copy import restore as restore_database

        restore_database(source, database := _database(context), key)
        path = database.name
    else:
        from tocsin.journal.backup import restore

        restore(source, context.settings.journal.path, key)
    done(as_json, path, path=path)


COMMANDS: list[click.Command] = [journal]
