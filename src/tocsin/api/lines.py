"""Lines of a write that a principal may not send: telemetry of nodes other than its own."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.api.principal import Principal
from tocsin.client.models import RejectedLine
from tocsin.store.line_protocol.line import LineError, cut_head, parse_head

_TELEMETRY = frozenset({"gpu", "gpu_missing", "gpu_info", "gpu_owner", "gpu_event"})


def own_lines(text: str, who: Principal, host_of: Callable[[str], str]) -> tuple[str, list[RejectedLine]]:
    """`text` with the lines that `who` may not send left empty, so that the others keep their numbers, and those lines.

    `host_of` tells which node has just reported a GPU, empty where none: its UUID cannot be taken over by another's
    certificate. Every record of line protocol starts on a line of its own, with its tags, so each line is looked at.
    """
    if not who.hosts:
        return text, []
    lines: list[str] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(text.split("\n"), start=1):
        problem = _problem(line.strip(" \r"), who, host_of)
        lines.append("" if problem else line)
        if problem:
            rejected.append(RejectedLine(number=number, problem=problem))
    return "\n".join(lines), rejected


def _problem(line: str, who: Principal, host_of: Callable[[str], str]) -> str:
    if not line or line.isspace() or line.lstrip().startswith("#"):
        return ""
    try:
        measurement, tags = parse_head(cut_head(line)[0])
    except LineError:
        # No record can start here; whether it belongs to one that started earlier is for the decoder to say.
        return ""
    host = tags.get("host", "")
    if measurement not in _TELEMETRY:
        return f"{who.name} may write readings and events alone"
    if not who.speaks_for(host):
        return f"{who.name} may not write for host {host[:100]!r}"
    reported = host_of(tags.get("mig_uuid") or tags.get("gpu_uuid", ""))
    if reported and not who.speaks_for(reported):
        return f"{who.name} may not write for a GPU that host {reported[:100]!r} reports"
    return ""
