"""`tocsin what-if`: what another limit or mode would have let run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, api_options, connect, json_option, pass_context, show
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.client.models_what_if import WhatIfDecision, WhatIfOut, WhatIfRequest

_SHOWN = 20
"""Decisions that are listed; `--json` has up to 200."""


@click.command("what-if")
@click.option("--guard", metavar="NAME=LIMIT", help="A guard with the limit that it would have: max_share=0.1.")
@click.option("--rule", metavar="NAME=MODE", help="A rule with the mode that it would have: observe, propose or act.")
@api_options
@json_option
@pass_context
def what_if(
    context: CliContext, guard: str | None, rule: str | None, api_url: str | None, token: str | None, as_json: bool
) -> None:
    """Show which held actions of the last 30 days a change would have let run. It changes no setting."""
    asked = _asked(guard, rule)
    with connect(context, api_url, token) as client:
        found = client.what_if(asked)
    show(as_json, found.model_dump(mode="json"), _lines(found), client.base_url)


def _asked(guard: str | None, rule: str | None) -> WhatIfRequest:
    from tocsin.client.models_what_if import WhatIfRequest
    from tocsin.domain.decision import Mode

    if (guard is None) == (rule is None):
        raise InputError("--guard", guard or "", "needs one change", "give either --guard or --rule")
    name, sign, value = (guard or rule or "").rpartition("=")
    if not sign or not name:
        raise InputError("--guard" if guard else "--rule", value, "has no NAME=VALUE", "such as max_share=0.1")
    if rule is not None:
        if value not in list(Mode):
            raise InputError("--rule", value, "is no mode", f"use one of {', '.join(Mode)}")
        return WhatIfRequest(rule=name, mode=Mode(value))
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0.0 <= limit <= 1e9:
        raise InputError("--guard", value, "is no limit", "give a number from 0 to 1e9")
    return WhatIfRequest(guard=name, limit=limit)


def _lines(found: WhatIfOut) -> list[str]:
    came = ", ".join(f"{after.replace('_', ' ')} {count}" for after, count in sorted(found.after.items()))
    lines = [
        f"{found.start[:10]} to {found.end[:10]}, {found.change}: of {found.decisions} held decisions "
        f"{found.would_run} would have run, {found.still_held} would still have been held, {found.not_known} not known",
        f"what came of those that would have run, within 48 h: {came}" if came else "",
        *(_item(one) for one in found.items[:_SHOWN]),
        "" if found.complete else "not the whole span was looked at: there is too much on record",
    ]
    return [line for line in lines if line]


def _item(one: WhatIfDecision) -> str:
    held = f" by {', '.join(one.held_by)}" if one.held_by else ""
    why = f" ({one.why})" if one.why else ""
    after = one.after.replace("_", " ")
    answer = one.answer.replace("_", " ")
    return f"  {one.at} {one.action} {one.subject.name}, {one.rule}: {answer}{held}{why}; after: {after}"


COMMANDS: list[click.Command] = [what_if]
