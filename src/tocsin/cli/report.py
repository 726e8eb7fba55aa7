"""`tocsin report`: the morning report."""

from __future__ import annotations

import click

from tocsin.cli.common import (
    CliContext,
    api_options,
    cell_option,
    connect,
    json_option,
    pass_context,
    show,
    spans_cells,
)


@click.command()
@click.option("--hours", type=click.IntRange(1, 168), default=24, show_default=True, help="How far back it looks.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language.")
@cell_option
@api_options
@json_option
@pass_context
def report(
    context: CliContext,
    hours: int,
    lang: str,
    cells: tuple[str, ...],
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Show in five sentences what happened, what Tocsin did and got wrong, what waits, and what to expect; of each cell
    of a fleet of several."""
    with connect(context, api_url, token) as client:
        if spans_cells(client, cells):
            from tocsin.client.whole import said

            whole = client.cells_report(hours, cells)
            told = {name: one.sentences for name, one in sorted(whole.answers.items())}
            lines = said(whole)
            for name, sentences in told.items():
                lines += [f"{name}:", *(f"  {one.text_zh if lang == 'zh' else one.text}" for one in sentences)]
            show(as_json, whole.model_dump(mode="json"), lines, client.base_url)
            return
        found = client.morning_report(hours)
    lines = [one.text_zh if lang == "zh" else one.text for one in found.sentences]
    show(as_json, found.model_dump(mode="json"), lines, client.base_url)


COMMANDS: list[click.Command] = [report]
