"""`tocsin changes`: what changed lately."""

from __future__ import annotations

import click

from tocsin.cli.common import CliContext, api_options, connect, json_option, pass_context, show
from tocsin.client.models_changes import Changes


@click.command()
@click.option("--hours", type=click.IntRange(1, 24), default=1, show_default=True, help="How far back it looks.")
@click.option("--limit", type=click.IntRange(1, 200), default=12, show_default=True, help="Most changes.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language.")
@api_options
@json_option
@pass_context
def changes(
    context: CliContext, hours: int, limit: int, lang: str, api_url: str | None, token: str | None, as_json: bool
) -> None:
    """Show what changed lately, newest first: cards, actions with their ends, controls, silences, hosts, versions."""
    with connect(context, api_url, token) as client:
        found = client.changes(hours, limit)
    show(as_json, found.model_dump(mode="json"), lines(found, lang), client.base_url)


def lines(found: Changes, lang: str) -> list[str]:
    """A line each, with its minute in UTC, and how many more there are."""
    made = [f"{one.at[11:16]}  {one.text_zh if lang == 'zh' and one.text_zh else one.text}" for one in found.items]
    more, least = found.total - len(found.items), found.at_least
    if not found.items:
        return ["没有变化。" if lang == "zh" else "Nothing changed."]
    if more or least:
        count = f"{more}+" if least else str(more)
        made.append(f"另有 {count} 项" if lang == "zh" else f"and {count} more")
    return made


COMMANDS: list[click.Command] = [changes]
