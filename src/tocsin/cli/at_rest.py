"""`tocsin at-rest`: which files of the state are encrypted, and bringing them to a key; without a running brain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, done, json_option, pass_context, show
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.at_rest.keys import StateKey


@click.group("at-rest")
def at_rest() -> None:
    """Show and change the encryption of the files of brain and agent."""


@at_rest.command("show")
@json_option
@pass_context
def at_rest_show(context: CliContext, as_json: bool) -> int:
    """List the files of the state and what encrypts each; exit 1 where nothing encrypts one."""
    from tocsin.runtime.state_files import agent_files, brain_files, exposed

    settings = context.settings
    files = [file for file in (*brain_files(settings), *agent_files(settings)) if file.path.exists()]
    plain = dict(exposed(settings, files))
    rows = [
        {
            "path": str(file.path),
            "form": file.form.value,
            "encrypted": file.encrypted,
            "disk": "" if file.encrypted else plain.get(file.path, "encrypted, or vouched for"),
        }
        for file in files
    ]
    lines = [f"{'encrypted' if row['encrypted'] else 'plain':9}  {row['path']}  {row['disk']}".rstrip() for row in rows]
    lines.append(f"{len(files)} files, {len(plain)} that nothing encrypts")
    show(as_json, {"files": rows, "exposed": len(plain)}, lines)
    return 1 if plain else 0


@at_rest.command("encrypt")
@json_option
@pass_context
def at_rest_encrypt(context: CliContext, as_json: bool) -> None:
    """Encrypt every plain file with the key of the settings; brain and agent must not run."""
    key = _own_key(context)
    _reseal(context, key, [key], as_json)


@at_rest.command("rekey")
@click.option(
    "--new-key-file", type=click.Path(path_type=Path), required=True, help="File of the key that takes its place."
)
@json_option
@pass_context
def at_rest_rekey(context: CliContext, new_key_file: Path, as_json: bool) -> None:
    """Encrypt every file anew with another key; brain and agent must not run. Then put that key into the settings.

    One that was cut off is gone on with by the same command.
    """
    from tocsin.at_rest.keys import read_key

    new = read_key(new_key_file, "--new-key-file")
    _reseal(context, new, [new, _own_key(context)], as_json)


@at_rest.command("decrypt")
@json_option
@pass_context
def at_rest_decrypt(context: CliContext, as_json: bool) -> None:
    """Write every file in the clear, as an earlier version of Tocsin reads it; brain and agent must not run."""
    _reseal(context, None, [_own_key(context)], as_json)


def _own_key(context: CliContext) -> StateKey:
    from tocsin.at_rest.keys import RING, hold_configured

    settings = context.settings.at_rest
    hold_configured(settings.key_file, settings.credential)
    key = RING.first()
    if key is None:
        raise InputError("at_rest.key_file", "", "is not set", "set it, or at_rest.credential")
    return key


def _reseal(context: CliContext, to: StateKey | None, keys: list[StateKey], as_json: bool) -> None:
    from tocsin.at_rest.keys import RING
    from tocsin.journal.files import load_key
    from tocsin.runtime.reseal import reseal

    RING.hold(lambda: keys, plain=to is None)
    seal = context.settings.journal.key_file
    sealed = load_key(seal) if seal is not None and seal.exists() else b""
    written, remains = reseal(context.settings, to, sealed)
    if not as_json:
        for path in remains:
            click.echo(f"tocsin: left as it is, put aside by a repair or a restore: {path}", err=True)
    how = "plain" if to is None else "encrypted"
    done(as_json, f"{written} files are {how} now", files=written, left=[str(path) for path in remains])


COMMANDS: list[click.Command] = [at_rest]
