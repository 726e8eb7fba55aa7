"""Log-in and log-out of a person at a brain."""

from __future__ import annotations

import sys
import threading

import click

from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError, Unavailable


@click.command()
@click.option("--user", help="Log in by password under this name; it is asked for, or read from standard input.")
@click.option("--api-url", help="The brain's API; default: setting dashboard.api_url, else api.listen.")
@json_option
@pass_context
def login(context: CliContext, user: str | None, api_url: str | None, as_json: bool) -> None:
    """Log in at a brain, by its provider or by password; the token is stored for the commands that follow."""
    from tocsin.client.client import Client
    from tocsin.client.device import DeviceLogin
    from tocsin.client.token_file import store_token

    dashboard = context.settings.dashboard
    url = api_url or context.settings.brain_url
    with Client(url, ca=dashboard.api_ca) as client:
        methods = client.login_methods()
        if user is not None or (methods.password and methods.oidc is None):
            opened = client.login(user or str(click.prompt("name")), _password())
            token, expires = opened.token, opened.expires
        elif methods.oidc is not None:
            given = DeviceLogin(
                methods.oidc, SystemClock(), lambda text: click.echo(text, err=True), threading.Event().wait
            ).run()
            token, expires = given.token, given.expires
        else:
            raise Unavailable(f"{url} has no log-in for people; set api.oidc or api.ldap, or use --token")
    with Client(url, token, ca=dashboard.api_ca) as client:
        who = client.me()
    path = store_token(url, token, expires)
    said = f"{who.name} ({who.role}) until {expires}; token in {path}"
    done(as_json, said, name=who.name, role=who.role, expires=expires, token_file=str(path))


def _password() -> str:
    """Asked for without an echo at a terminal; else the first line of standard input. Never an argument: `ps` shows
    those to everybody.
    """
    if sys.stdin.isatty():
        return str(click.prompt("password", hide_input=True))
    return sys.stdin.readline().rstrip("\r\n")


@click.command()
@api_options
@json_option
@pass_context
def logout(context: CliContext, api_url: str | None, token: str | None, as_json: bool) -> None:
    """End the log-in at a brain and forget its token."""
    from tocsin.client.token_file import drop_token, stored_token

    url = api_url or context.settings.brain_url
    stored = token or stored_token(url, SystemClock())
    problem = ""
    if stored:
        try:
            with connect(context, url, stored) as client:
                client.logout()
        except TocsinError as error:
            # A provider's token cannot be ended here, and a brain that is gone has forgotten it: it is dropped anyway.
            problem = f" ({error})"
    dropped = drop_token(url)
    was = bool(stored or dropped)
    done(as_json, f"{'logged out' if was else 'nobody was logged in'}{problem}", was_logged_in=was, problem=problem)


COMMANDS: list[click.Command] = [login, logout]
