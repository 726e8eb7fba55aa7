"""What the commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tocsin.config.load import load_settings
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock

if TYPE_CHECKING:
    from tocsin.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """Options of the root command."""

    config: Path | None
    secrets: Path | None

    @cached_property
    def settings(self) -> Settings:
        """The settings, loaded on first use: a command that needs none works beside a broken file."""
        return load_settings(self.config, secrets=self.secrets)


pass_context = click.make_pass_decorator(Context)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def api_options(function: F) -> F:
    """Options that say which brain to talk to."""
    told = "Bearer token; default: that of `tocsin login`, else setting dashboard.api_token."
    function = click.option("--token", help=told)(function)
    return click.option("--api-url", help="The brain's API; default: setting dashboard.api_url.")(function)


def connect(context: Context, api_url: str | None, token: str | None) -> Client:
    """A client of the brain."""
    from tocsin.client.client import Client
    from tocsin.client.token_file import stored_token

    dashboard = context.settings.dashboard
    url = api_url or dashboard.api_url
    found = token or stored_token(url, SystemClock()) or dashboard.api_token.get_secret_value()
    return Client(url, found, ca=dashboard.api_ca)


def dump(value: object) -> None:
    """Print `value` as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
