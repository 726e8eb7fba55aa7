"""`tocsin`: the root command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from tocsin import __version__
from tocsin.cli.common import CliContext
from tocsin.cli.completion import PROGRAM
from tocsin.domain.errors import TocsinError, Unavailable, install_extra
from tocsin.plugins import EXTRAS

TASKS: dict[str, tuple[str, ...]] = {
    "Start": ("demo", "brain", "agent", "dashboard", "mcp"),
    "Look at the fleet": (
        "cards", "card", "top", "status", "cells", "changes", "diagnose", "scoreboard", "report", "usage",
        "drift", "what-if", "plan",
    ),
    "Look at this node": ("scan", "slurm-health", "xid"),
    "Decide and act": (
        "approve", "reject", "ack", "snooze", "snoozes", "maintenance", "pause", "resume", "breaker", "release", "act",
        "notify", "login", "logout", "inject",
    ),
    "Records": ("journal", "at-rest", "evidence", "store", "import", "replay"),
    "Forecasts": ("models", "train", "backtest", "rehearse"),
    "Set up": ("config", "rules", "token", "plugins", "size", "completion", "reference"),
}  # fmt: skip
"""Commands by what somebody wants to do; `tocsin --help` lists them so."""


MODULES: dict[str, tuple[str, ...]] = {
    "act": ("act",),
    "at_rest": ("at-rest",),
    "backtest": ("backtest",),
    "cards": ("card", "cards"),
    "cells": ("cells",),
    "changes": ("changes",),
    "completion": ("completion",),
    "control": ("approve", "breaker", "inject", "pause", "reject", "resume"),
    "diagnose": ("diagnose",),
    "drift": ("drift",),
    "evidence": ("evidence",),
    "files": ("config", "replay", "rules", "store"),
    "imports": ("import",),
    "journal": ("journal",),
    "login": ("login", "logout"),
    "mcp": ("mcp",),
    "models": ("models", "train"),
    "notify": ("notify",),
    "plan": ("plan",),
    "plugins": ("plugins",),
    "processes": ("agent", "brain", "dashboard", "demo"),
    "reference": ("reference",),
    "rehearse": ("rehearse",),
    "release": ("release",),
    "report": ("report",),
    "scan": ("scan",),
    "scoreboard": ("scoreboard",),
    "silences": ("ack", "maintenance", "snooze", "snoozes"),
    "size": ("size",),
    "slurm_health": ("slurm-health",),
    "status": ("status",),
    "tokens": ("token",),
    "top": ("top",),
    "usage": ("usage",),
    "what_if": ("what-if",),
    "xid": ("xid",),
}
"""Commands by the module of this folder that has them in its `COMMANDS`."""


class Commands(MutableMapping[str, click.Command]):
    """Commands by name, each loaded when it is asked for: `tocsin agent` imports what the agent needs and no more."""

    def __init__(self) -> None:
        self._modules = {name: module for module, names in MODULES.items() for name in names}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded and name in self._modules:
            module = import_module(f"tocsin.cli.{self._modules[name]}")
            self._loaded |= {str(command.name): command for command in module.COMMANDS}
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._loaded})

    def __len__(self) -> int:
        return len({**self._modules, **self._loaded})


MOST_OF_A_SUMMARY = 200
"""Characters of what a command does: its first sentence whole, on as many lines as it needs."""


class TaskGroup(click.Group):
    """A group whose help lists its commands by task."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of commands for each task; what has none comes last."""
        left = [name for name in self.list_commands(ctx) if not any(name in names for names in TASKS.values())]
        for task, names in {**TASKS, "Other": tuple(left)}.items():
            known = [(name, found) for name in names if (found := self.get_command(ctx, name)) is not None]
            if known:
                with formatter.section(task):
                    formatter.write_dl([(name, found.get_short_help_str(MOST_OF_A_SUMMARY)) for name, found in known])


@click.group(
    cls=TaskGroup,
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tocsin")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings; default: $TOCSIN_CONFIG.")
@click.option("--secrets", type=click.Path(path_type=Path), help="Folder of secret files; default: $TOCSIN_SECRETS.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, secrets: Path | None) -> None:
    """The early-warning bell of a GPU fleet."""
    ctx.obj = CliContext(config, secrets)


_NOT_KNOWN = {"token_required", "token_unknown"}
_LOG_IN = "; give --token TOKEN, set dashboard.api_token, or use `tocsin login` where people log in"


def main() -> None:
    """Run the command line; an error that an operator can mend is one line on standard error."""
    try:
        code = cli.main(prog_name=PROGRAM, standalone_mode=False)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if (extra := EXTRAS.get(name)) is None:
            raise
        _fail(f"{name} is not installed; {install_extra(extra)}", Unavailable.exit_code)
    except TocsinError as error:
        _fail(f"{error}{_LOG_IN if getattr(error, 'code', '') in _NOT_KNOWN else ''}", error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _fail(_told(error), error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str, code: int) -> NoReturn:
    click.echo(f"{PROGRAM}: {line}", err=True)
    sys.exit(code)


def _told(error: click.ClickException) -> str:
    """A mistake on the command line in one line, with the command whose help has the rest."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message}; see {context.command_path} --help"
