"""What the commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, reduce
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tocsin.at_rest.keys import hold_configured
from tocsin.config.load import load_settings, overridden
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.client.client import Client

NOBODY = "loopback"
"""Whom a brain without tokens takes everybody on its host for."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CliContext:
    """Options of the root command."""

    config: Path | None
    secrets: Path | None

    @cached_property
    def settings(self) -> Settings:
        """The settings, loaded on first use: a command that needs none works beside a broken file.

        What the environment says in place of the file is told on standard error: it is easily forgotten in a shell.
        """
        settings = load_settings(self.config, secrets=self.secrets)
        for said in overridden(self.config):
            click.echo(f"tocsin: {said}", err=True)
        hold_configured(settings.at_rest.key_file, settings.at_rest.credential)
        return settings


pass_context = click.make_pass_decorator(CliContext)

JSON_HELP = "Print JSON instead of text."
json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


api_options = all_of(
    click.option("--api-url", help="The brain's API; default: settings, else a running demo."),
    click.option("--token", help="Bearer token; default: that of `tocsin login`, else setting dashboard.api_token."),
)
"""Options that say which brain to talk to."""


cell_option = click.option("--cell", "cells", multiple=True, metavar="NAME", help="Only this cell; repeatable.")
"""Which cells of a fleet of several are asked; all where none is named."""


def spans_cells(client: Client, cells: Sequence[str] = ()) -> bool:
    """Whether the fleet has several cells, or some are asked for by name; a brain of the version before knows none."""
    from tocsin.client.errors import Denied, NotFound

    try:
        return bool(cells) or len(client.cells()) > 1
    except (NotFound, Denied):
        # A tenant is shown no other cells; whoever has no access at all is told so by the next question.
        return False


def brain_of(settings: Settings, api_url: str | None) -> str:
    """The brain that is asked: `api_url`, else what the settings name, else a demo that runs, else the usual place."""
    from tocsin.client.demo_file import running_demo

    if api_url or settings.names_brain:
        return api_url or settings.brain_url
    demo = running_demo()
    if demo is None:
        return settings.brain_url
    click.echo(f"tocsin: asking the demo at {demo.api_url}", err=True)
    return demo.api_url


def connect(context: CliContext, api_url: str | None, token: str | None, timeout: float = 10.0) -> Client:
    """A client of the brain; `timeout` is seconds. Says so on standard error where the brain ignores `token`."""
    from tocsin.client.client import Client
    from tocsin.client.token_file import stored_token

    dashboard = context.settings.dashboard
    url = brain_of(context.settings, api_url)
    found = token or stored_token(url, SystemClock()) or dashboard.api_token.get_secret_value()
    client = Client(url, found, timeout, ca=dashboard.api_ca)
    if token:
        _tell_ignored_token(client)
    return client


def _tell_ignored_token(client: Client) -> None:
    try:
        ignored = client.me().name == NOBODY
    except TocsinError:
        # The command itself says what is wrong.
        return
    if ignored:
        said = f"--token is ignored: the brain at {client.base_url} has no api.tokens; on its host everybody is admin"
        click.echo(f"tocsin: {said}", err=True)


def dump(value: object) -> None:
    """Print `value` as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def done(as_json: bool, sentence: str, /, brain: str = "", **facts: object) -> None:
    """Say that a command has done what it was asked for: ``ok: SENTENCE``, or JSON of `facts` with ``ok`` true.

    `brain` is the URL of the brain that did it, if one did.
    """
    if as_json:
        dump({"ok": True, **({"brain": brain} if brain else {}), **facts})
    else:
        click.echo(f"ok: {sentence} (brain {brain})" if brain else f"ok: {sentence}")


def show(as_json: bool, document: object, lines: Iterable[str], brain: str = "") -> None:
    """Print `document` as JSON, or `lines` for people; `brain` is the URL of the brain that answered, if one did."""
    if as_json:
        dump({"brain": brain, **document} if brain and isinstance(document, dict) else document)
        return
    for line in [f"brain {brain}", *lines] if brain else lines:
        click.echo(line)


def said_as_json(run: Callable[[], object]) -> int:
    """The exit code of `run`, whose lines are held back and printed as ``{"ok", "exit_code", "said"}``."""
    with redirect_stdout(StringIO()) as lines:
        code = run()
    code = code if isinstance(code, int) else 0
    dump({"ok": code == 0, "exit_code": code, "said": lines.getvalue().splitlines()})
    return code


class SaidCommand(click.Command):
    """A command that says what it does in lines, with ``--json`` the same lines as ``{"ok", "exit_code", "said"}``.

    One that has an option ``--json`` of its own keeps it.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._wraps = not any("--json" in parameter.opts for parameter in self.params)
        if self._wraps:
            self.params.append(click.Option(["--json", "as_json"], is_flag=True, help=JSON_HELP))

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; its lines are held back for the JSON."""
        if not self._wraps or not ctx.params.pop("as_json"):
            return super().invoke(ctx)
        run = super().invoke
        return said_as_json(lambda: run(ctx))


class SaidGroup(click.Group):
    """A group of such commands."""

    command_class = SaidCommand
