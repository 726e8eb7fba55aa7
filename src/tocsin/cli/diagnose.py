"""`tocsin diagnose`: why a job is slow, and what is wrong with memory, idle GPUs and requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, json_option, pass_context, show
from tocsin.client.wire import to_json

if TYPE_CHECKING:
    from tocsin.domain.diagnosis import Diagnosis

_TITLES = {
    "slow_job": "What limits each job (the last 15 minutes)",
    "memory": "Memory that leaks",
    "idle": "GPUs that do nothing",
    "requests": "Requests out of the ordinary",
}
_SHOWN = 20


@click.command()
@click.option("--host", default="", shell_complete=values.hosts, help="Only the GPUs of this node.")
@click.option("--chinese", is_flag=True, help="Sentences in Chinese.")
@api_options
@json_option
@pass_context
def diagnose(
    context: CliContext, host: str, chinese: bool, api_url: str | None, token: str | None, as_json: bool
) -> None:
    """Show which stage limits each job: storage, CPU, copies either way, the GPU itself, or the links between GPUs.

    Also: memory leaks and memory held without a process, GPUs that are held idle or stranded, and request floods and
    long requests on shared inference servers.
    """
    with connect(context, api_url, token) as client:
        found = client.diagnoses(host)
    show(as_json, to_json(found), _lines(found, chinese), client.base_url)


def _lines(found: Sequence[Diagnosis], chinese: bool) -> list[str]:
    lines: list[str] = []
    for kind, title in _TITLES.items():
        if not (mine := [one for one in found if one.kind == kind]) and kind != "slow_job":
            continue
        lines += ["", title + ("" if mine else ": no job runs")]
        for one in mine[:_SHOWN]:
            lines.append(f"  {one.sentence_zh if chinese else one.sentence}")
            if one.remedy and one.verdict != "device":
                lines.append(f"    try: {one.remedy}")
        if len(mine) > _SHOWN:
            lines.append(f"  and {len(mine) - _SHOWN} more (see --json)")
    return lines[1:]


COMMANDS: list[click.Command] = [diagnose]
