"""`tocsin completion`: the script that lets a shell complete commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

PROGRAM = "tocsin"
VARIABLE = "_TOCSIN_COMPLETE"
"""Through it a shell asks; click's own name for a program called tocsin."""
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and values.

    bash (4.4 or newer): tocsin completion bash > ~/.local/share/bash-completion/completions/tocsin. zsh: into a file
    _tocsin of a folder in $fpath. fish: into ~/.config/fish/completions/tocsin.fish.
    """
    cli = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    # Not the source of bash's own class: it runs the bash of this machine to ask for its version.
    click.echo(ShellComplete.source(kind(cli, {}, PROGRAM, VARIABLE)))


COMMANDS: list[click.Command] = [completion]
