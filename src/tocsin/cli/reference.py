"""`tocsin reference`: the reference pages of the documentation, made from the code."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tocsin.config.load import PREFIX, describe
from tocsin.domain.metrics import METRICS
from tocsin.domain.vendor_metrics import AMD, ASCEND, vendor_metrics
from tocsin.telemetry.metrics import reference as own_reference


def settings_page() -> str:
    """Markdown of every settings key with its default and meaning."""
    lines = [
        "# Settings",
        "",
        "Made by `tocsin reference settings`. Keys are `section.key` of the TOML file; the environment variable of",
        f"`agent.pool` is `{PREFIX}AGENT__POOL`, its secret file `agent__pool`. `tocsin config check` checks a file.",
        "",
        "| key | default | meaning |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name}` | `{default}` | {' '.join(text.split())} |" for name, default, text in describe()]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Markdown of the metric table."""
    lines = [
        "# Metrics",
        "",
        f"Made by `tocsin reference metrics`: the {len(METRICS)} rows of the metric table. A label in the second",
        'column means that the metric has variants, `name{label="value"}`; they do not count as metrics of their own.',
        "",
        "What AMD and Ascend answer, with their units, stands after the table.",
        "",
        "| metric | label | kind | unit | meaning | NVML | DCGM |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for spec in METRICS.values():
        dcgm = ", ".join(str(number) for number in spec.dcgm_ids)
        nvml = f"`{spec.nvml.replace('|', '/')}`" if spec.nvml else ""
        cells = (f"`{spec.name}`", spec.label, spec.kind, spec.unit, spec.help, nvml, dcgm)
        lines.append("| " + " | ".join(cells) + " |")
    for vendor, heading in _VENDORS.items():
        lines += ["", *_vendor_table(vendor, heading)]
    return "\n".join(lines) + "\n"


_VENDORS = {AMD: "AMD, by the library amdsmi", ASCEND: "Ascend, by the program npu-smi"}


def _vendor_table(vendor: str, heading: str) -> list[str]:
    """The rows of one vendor: what is asked, where the answer has the value, and its unit there."""
    lines = [
        f"## {heading}",
        "",
        "Never run on such a card. Several rows of one metric are tried in their order; `slow` rows are not asked with",
        "every reading.",
        "",
        "| metric | asked | key | unit there | cadence | from |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in vendor_metrics(vendor):
        name = row.name(METRICS[row.metric].label)
        key = f"`{row.key}`" if row.key else ""
        cadence = "slow" if row.slow else "each reading"
        lines.append(f"| `{name}` | `{row.call}` | {key} | {row.unit} | {cadence} | {row.provenance} |")
    return lines


def _walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            yield from _walk(command.commands[child], f"{name} {child}")
    else:
        yield name, command


def commands_page() -> str:
    """Markdown of every command with its options; called within a command."""
    cli = click.get_current_context().find_root().command
    lines = ["# Commands", "", "Made by `tocsin reference commands`.", ""]
    for name, command in _walk(cli, "tocsin"):
        usage = " ".join(
            p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)
        )
        lines += [f"## `{f'{name} {usage}'.strip()}`", "", " ".join((command.help or "").split()), ""]
        options = [p for p in command.params if isinstance(p, click.Option)]
        lines += [f"- `{'`, `'.join(option.opts)}`: {option.help}" for option in options]
        lines += [""] if options else []
    return "\n".join(lines).rstrip() + "\n"


def own_metrics_page() -> str:
    """Markdown of Tocsin's own metrics."""
    lines = [
        "# Own metrics",
        "",
        "Made by `tocsin reference own_metrics`: what agent and brain say about themselves on `/metrics`.",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, spec in own_reference().items():
        lines.append(f"| `{name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.help} |")
    return "\n".join(lines) + "\n"


def endpoints() -> str:
    """Markdown of every endpoint of the brain's API."""
    from tocsin.api.reference import endpoints_page

    return endpoints_page()


PAGES = {
    "own_metrics": own_metrics_page,
    "settings": settings_page,
    "metrics": metrics_page,
    "commands": commands_page,
    "endpoints": endpoints,
}
"""Page name to its maker; `docs/NAME.md` holds what it returns."""


def dcgm_counters() -> str:
    """The counters file for dcgm-exporter."""
    from tocsin.collector.dcgm.fields import counters_csv

    return counters_csv()


FILES = {"dcgm-counters": dcgm_counters}
"""Files that are shipped, by name: made from the code too, but no pages of the documentation."""


@click.command()
@click.argument("page", type=click.Choice(sorted([*PAGES, *FILES])))
def reference(page: str) -> None:
    """Print a reference page of the documentation, or the counters file for dcgm-exporter."""
    click.echo((PAGES | FILES)[page](), nl=False)


COMMANDS = [reference]
