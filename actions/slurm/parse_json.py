"""``sinfo --json`` and ``squeue --json``, from 22.05 on.

From 23.02 on states are lists of words and optional numbers are ``{"set": true, "infinite": false, "number": 1}``;
before, the state is one word with its flags beside it. Both are read.
"""

from __future__ import annotations

import json
from typing import Any

from tocsin.actions.slurm.state import ACTIVE, SlurmJob, SlurmNode, split_state
from tocsin.actions.slurm.words import gpu_count, gpus_by_node, job_ref, names, plain


def nodes_of_json(text: str) -> list[SlurmNode]:
    """Every node of ``sinfo --json``, each once. Raises ValueError for what is no such output."""
    found: dict[str, SlurmNode] = {}
    for item in _json_list(text, "nodes", "sinfo"):
        name = plain(item.get("name"))
        if name:
            found[name] = _json_node(name, item)
    return list(found.values())


def jobs_of_json(text: str) -> list[SlurmJob]:
    """Every job of ``squeue --json``. Raises ValueError for what is no such output."""
    jobs = (_json_job(item) for item in _json_list(text, "jobs"))
    return [job for job in jobs if job is not None]


def _json_list(text: str, *keys: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    found = next((document[key] for key in keys if key in document), None) if isinstance(document, dict) else None
    if isinstance(found, list):
        return [item for item in found if isinstance(item, dict)]
    raise ValueError(f"there is no list {keys[0]!r} in it")


def _json_node(name: str, item: dict[str, Any]) -> SlurmNode:
    base, flags = split_state([*_words(item.get("state")), *_words(item.get("state_flags"))])
    return SlurmNode(
        name,
        base,
        flags,
        plain(item.get("reason")),
        plain(item.get("reason_set_by_user")),
        plain(item.get("comment")),
        tuple(_words(item.get("partitions"))),
        gpu_count(item.get("gres")),
        _json_number(item.get("boot_time")) or 0,
        _json_number(item.get("last_busy")) or 0,
    )


def _json_job(item: dict[str, Any]) -> SlurmJob | None:
    number = _json_number(item.get("job_id"))
    if not number:
        return None
    task, array = _json_number(item.get("array_task_id")), _json_number(item.get("array_job_id")) or 0
    nodes = names(item.get("nodes"))
    details = item.get("gres_detail")
    return SlurmJob(
        job_ref(number, array, task, _json_number(item.get("het_job_id")) or 0),
        number,
        _job_state(_words(item.get("job_state"))),
        nodes,
        item.get("requeue") is True,
        item.get("batch_flag") is True,
        plain(item.get("state_reason")),
        plain(item.get("comment")) or plain(_dig(item, "comment", "user")),
        plain(item.get("admin_comment")) or plain(_dig(item, "comment", "administrator")),
        names(item.get("required_nodes")),
        plain(item.get("current_working_directory")),
        plain(item.get("user_name")),
        gpus_by_node(nodes, details) if isinstance(details, list) else {},
        _json_number(item.get("priority")) or 0,
        _json_number(item.get("start_time")) or 0,
        (_json_number(item.get("end_time")) or 0) if _json_number(item.get("time_limit")) else 0,
    )


def _job_state(words: list[str]) -> str:
    """One word for all: a job that was cancelled and is still completing holds its nodes."""
    states = [word.upper() for word in words]
    return next((state for state in states if state in ACTIVE), states[0] if states else "UNKNOWN")


def _dig(item: dict[str, Any], *keys: str) -> object:
    found: object = item
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [word for word in value.split("+") if word]
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _json_number(value: object) -> int | None:
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    return value if isinstance(value, int) and not isinstance(value, bool) else None
