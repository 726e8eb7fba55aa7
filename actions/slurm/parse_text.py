"""``scontrol show node`` and ``scontrol -d show job``, one record a line: for versions that print no JSON."""

from __future__ import annotations

import re
from datetime import datetime

from tocsin.actions.slurm.state import SlurmJob, SlurmNode, split_state
from tocsin.actions.slurm.words import gpu_count, gpus_by_node, job_ref, names, plain

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9_/:&]*)=")
_WHO = re.compile(r"\s*\[([^\[\]@]+)@[^\[\]]*\]$")
_RESOURCES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_FREE = frozenset({"Reason", "Comment", "AdminComment", "SystemComment", "Extra", "OS"})
"""Keys whose value may hold anything, a ``Key=`` too: only a key that can follow them ends it."""
_AFTER_FREE = {
    "Reason": frozenset({"Comment", "Extra", "Dependency"}),
    "Comment": frozenset({"Extra", "StdErr", "StdIn", "StdOut", "SystemComment"}),
    "AdminComment": frozenset({"SystemComment", "Comment", "StdErr"}),
    "SystemComment": frozenset({"Comment", "StdErr"}),
    "Extra": frozenset({"Comment"}),
    "OS": frozenset({"RealMemory"}),
}


def nodes_of_text(text: str) -> list[SlurmNode]:
    """Nodes of ``scontrol show node --oneliner``; lines that show none are passed over."""
    records = [_fields(line) for line in text.splitlines() if line.startswith("NodeName=")]
    return [_text_node(record) for record in records if plain(record.get("NodeName"))]


def jobs_of_text(text: str) -> list[SlurmJob]:
    """Jobs of ``scontrol -d show job --oneliner``; lines that show none are passed over."""
    jobs = (_text_job(line) for line in text.splitlines() if line.startswith("JobId="))
    return [job for job in jobs if job is not None]


def _fields(line: str) -> dict[str, str]:
    found: dict[str, str] = {}
    key, begun = "", 0
    for match in _KEY.finditer(line):
        if key in _FREE and match[1] not in _AFTER_FREE[key]:
            continue
        if key:
            found.setdefault(key, line[begun : match.start()].strip())
        key, begun = match[1], match.end()
    if key:
        found.setdefault(key, line[begun:].strip())
    return found


def _text_node(record: dict[str, str]) -> SlurmNode:
    base, flags = split_state(record.get("State", "").split("+"))
    reason = record.get("Reason", "")
    who = _WHO.search(reason)
    return SlurmNode(
        record["NodeName"],
        base,
        flags,
        plain(reason[: who.start()] if who else reason),
        who[1] if who else "",
        plain(record.get("Comment")),
        tuple(part for part in plain(record.get("Partitions")).split(",") if part),
        gpu_count(record.get("Gres")),
        _local_seconds(record.get("BootTime")),
        _local_seconds(record.get("LastBusyTime")),
    )


def _text_job(line: str) -> SlurmJob | None:
    record = _fields(line)
    number = _text_number(record.get("JobId"))
    if not number:
        return None
    nodes = names(record.get("NodeList"))
    task = _text_number(record.get("ArrayTaskId"))
    held = {node: text for listed, text in _RESOURCES.findall(line) for node in names(listed)}
    return SlurmJob(
        job_ref(number, _text_number(record.get("ArrayJobId")) or 0, task, _text_number(record.get("HetJobId")) or 0),
        number,
        record.get("JobState", "UNKNOWN").upper(),
        nodes,
        record.get("Requeue") == "1",
        record.get("BatchFlag", "0") != "0",
        plain(record.get("Reason")),
        plain(record.get("Comment")),
        plain(record.get("AdminComment")),
        names(record.get("ReqNodeList")),
        plain(record.get("WorkDir")),
        plain(record.get("UserId")).split("(")[0],
        gpus_by_node(nodes, [held.get(node, "") for node in nodes]),
        _text_number(record.get("Priority")) or 0,
        _local_seconds(record.get("StartTime")),
        _local_seconds(record.get("EndTime")),
    )


def _text_number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) < 19 else None


def _local_seconds(text: str | None) -> int:
    """Slurm's local time in seconds since the epoch; 0 where it says none."""
    try:
        return int(datetime.fromisoformat(text or "").astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        return 0
