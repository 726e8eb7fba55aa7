"""`tocsin notify`: notification channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.actions.notifications.trial import ChannelTrial


@click.group()
def notify() -> None:
    """Manage notification channels."""


@notify.command("test")
@click.option("--channel", "names", multiple=True, metavar="NAME", help="Only this channel; may be repeated.")
@json_option
@click.pass_context
@pass_context
def try_out(context: CliContext, click_context: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Send a test message to each channel, and its end where the channel supports it.

    Exit status 1 where one failed.
    """
    from tocsin.actions.notifications.trial import trials
    from tocsin.domain.clock import SystemClock

    if not (done := trials(context.settings, SystemClock(), names)):
        remedy = "set webhook.url or add a table [[notify.channels]]"
        raise InputError("notify.channels", [], "no channel is set: notifications are recorded only", remedy)
    show(as_json, [trial.as_dict() for trial in done], map(_line, done))
    if not all(trial.ok for trial in done):
        click_context.exit(1)


def _line(trial: ChannelTrial) -> str:
    ended = "" if trial.ended is None else f"; end: {trial.ended.detail}"
    return f"{'ok' if trial.ok else 'failed'}  {trial.name} ({trial.kind}): {trial.sent.detail}{ended}"


COMMANDS = (notify,)
