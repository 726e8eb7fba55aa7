"""Nodes and jobs as Slurm shows them, whichever version and form of output they came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

BASES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
"""Base states of a node (slurm.h, enum node_states); every other word is a flag."""
_SYNONYMS = {
    "ALLOC": ("ALLOCATED",),
    "MIX": ("MIXED",),
    "COMP": ("IDLE", "COMPLETING"),
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("MIXED", "DRAIN"),
    "DRNG": ("MIXED", "DRAIN"),
    "POWER_SAVING": ("POWERED_DOWN",),
    "POWER": ("POWERED_DOWN",),
    "REBOOT": ("REBOOT_REQUESTED",),
    "MAINTENANCE": ("MAINT",),
}
"""Words of older versions and of sinfo's tables."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
}
"""Signs behind a state (man sinfo, NODE STATE CODES)."""
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
_CLOSED = frozenset({"DRAIN", "FAIL", "MAINT", "REBOOT_ISSUED"})
ACTIVE = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)


def split_state(words: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Base state and flags of a node's state words, such as ``["IDLE", "DRAIN"]`` or ``["down*"]``."""
    base, flags = "UNKNOWN", set[str]()
    for word in words:
        bare = word.strip().rstrip("".join(_SUFFIXES)).upper()
        flags.update(_SUFFIXES[sign] for sign in word.strip()[len(bare) :])
        for name in _SYNONYMS.get(bare, (bare,)):
            if name in BASES and base == "UNKNOWN":
                base = name
            elif name and name not in BASES:
                flags.add(name)
    return base, frozenset(flags)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. `gpus` counts its configured GPUs; `boot_s` and `busy_s` are seconds since the epoch, 0 for unknown."""

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    comment: str = ""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    boot_s: int = 0
    busy_s: int = 0

    @property
    def drained(self) -> bool:
        """Whether it takes no new work because someone said so."""
        return "DRAIN" in self.flags

    @property
    def out(self) -> bool:
        """Whether it is out of service, for whatever reason."""
        return self.drained or "FAIL" in self.flags or self.base in ("DOWN", "ERROR")

    @property
    def cloud(self) -> bool:
        """Whether it comes and goes with its power."""
        return "CLOUD" in self.flags

    @property
    def off(self) -> bool:
        """Whether it is without power or on its way there."""
        return not _OFF.isdisjoint(self.flags)

    @property
    def coming_up(self) -> bool:
        """Whether it was powered up and has not reported yet."""
        return "POWERING_UP" in self.flags or "POWER_UP" in self.flags

    @property
    def ready(self) -> bool:
        return (
            self.base in ("IDLE", "MIXED", "ALLOCATED")
            and "NOT_RESPONDING" not in self.flags
            and not (self.off or self.coming_up)
        )

    @property
    def schedulable(self) -> bool:
        return self.ready and _CLOSED.isdisjoint(self.flags)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of a job array.

    `ref` is the name under which Slurm changes this one alone: ``12``, ``12_3`` for a task of an array (whose plain
    number may stand for the whole array), the leader's number for a part of a heterogeneous job. `gpus` are the indices
    of the GPUs that it holds, by node; a node is left out where that is not told. `start_s` and `end_s`, its start and
    the end of its time limit, are seconds since the epoch, 0 for unknown or no limit.
    """

    ref: str
    number: int
    state: str
    nodes: tuple[str, ...] = ()
    requeue: bool = False
    batch: bool = False
    reason: str = ""
    comment: str = ""
    admin_comment: str = ""
    required_nodes: tuple[str, ...] = ()
    folder: str = ""
    user: str = ""
    gpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    priority: int = 0
    start_s: int = 0
    end_s: int = 0
    account: str = ""

    @property
    def active(self) -> bool:
        """Whether it holds its nodes."""
        return self.state in ACTIVE

    @property
    def pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD")


@dataclass(frozen=True, slots=True)
class SlurmSnapshot:
    """All nodes by name and all jobs at one instant."""

    nodes: Mapping[str, SlurmNode]
    jobs: tuple[SlurmJob, ...] = ()

    def on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold `node`, in order of number."""
        return sorted((job for job in self.jobs if job.active and node in job.nodes), key=lambda job: job.number)


# What Slurm's commands print, as nodes and jobs. ``sinfo --json`` and ``squeue --json`` print JSON from 22.05 on.
# From 23.02 on states are lists of words and optional numbers are ``{"set": true, "infinite": false, "number": 1}``;
# before, the state is one word with its flags beside it. For versions that print no JSON, ``scontrol show node`` and
# ``scontrol -d show job`` print one record a line. Host names come in Slurm's short form, ``gpu-[1-3,07],login``.

MOST_NAMES = 100_000
"""More than any cluster has: a range with a slip in it must not fill the memory."""

_RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18}))?$")


def expand(text: str) -> tuple[str, ...]:
    """The names that `text` stands for, in its order. Raises ValueError for what is no host list."""
    names: list[str] = []
    for part in _parts(text):
        names.extend(_expand_one(part, MOST_NAMES - len(names)))
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """The pieces between commas outside brackets."""
    depth, begun = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text[:80]!r}: brackets do not match")
        if letter == "," and depth == 0:
            yield text[begun:at].strip()
            begun = at + 1
    if depth:
        raise ValueError(f"{text[:80]!r}: brackets do not match")
    yield text[begun:].strip()


def _expand_one(part: str, room: int) -> list[str]:
    names = [""] if part else []
    while part:
        before, bracket, rest = part.partition("[")
        inside, _, part = rest.partition("]")
        numbers = list(_numbers(inside, room)) if bracket else [""]
        if len(names) * len(numbers) > room:
            raise ValueError(f"a host list of more than {MOST_NAMES} names")
        names = [name + before + number for name in names for number in numbers]
    return names


def _numbers(inside: str, room: int) -> Iterator[str]:
    """The numbers of a bracket. Raises ValueError where they are more than `room`, before they are made."""
    for piece in inside.split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise ValueError(f"{inside[:80]!r} is no range of numbers")
        low, high = match[1], match[2] or match[1]
        room -= int(high) - int(low) + 1
        if int(high) < int(low) or room < 0:
            raise ValueError(f"{piece[:80]!r} runs backwards or is too long")
        yield from (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))


_GPUS = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?::[A-Za-z][^:,()=]*)?[:=](\d+)")
_INDICES = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu[^,()]*\(IDX:([\d,-]+)\)")
_EMPTY = frozenset({"", "(null)", "None", "N/A", "none"})


def plain(text: object) -> str:
    """`text` without Slurm's words for nothing."""
    return "" if not isinstance(text, str) or text.strip() in _EMPTY else text.strip()


def names(text: object) -> tuple[str, ...]:
    """A host list's names; empty for none and for what is no host list."""
    try:
        return expand(plain(text))
    except ValueError:
        return ()


def gpu_count(gres: object) -> int:
    """GPUs of a gres text, ``gpu:h100:4,gpu:a100:2(S:0-1)``."""
    return sum(int(number) for number in _GPUS.findall(re.sub(r"\([^()]*\)", "", plain(gres))))


def gpu_indices(gres: object) -> frozenset[int] | None:
    """Indices of ``gpu:h100:2(IDX:0,3)``; None where no GPU is named with its index."""
    found = _INDICES.findall(plain(gres))
    if not found:
        return None
    try:
        return frozenset(int(number) for piece in found for number in expand(f"[{piece}]"))
    except ValueError:
        return None


def job_ref(number: int, array: int, task: int | None, leader: int) -> str:
    """The name under which one job alone is changed."""
    return f"{array}_{task}" if array and task is not None else str(leader or number)


def gpus_by_node(nodes: tuple[str, ...], texts: list[object]) -> Mapping[str, frozenset[int]]:
    """Indices by node from one gres text for each node, in order; empty where the numbers of both differ."""
    if len(nodes) != len(texts):
        return {}
    found = {node: gpu_indices(text) for node, text in zip(nodes, texts, strict=True)}
    return {node: indices for node, indices in found.items() if indices is not None}


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


def states_of_text(text: str) -> dict[str, SlurmNode]:
    """Nodes of ``sinfo --Node --format=%N|%T`` with nothing but their state; lines that show none are passed over."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        name, bar, state = line.strip().partition("|")
        if bar and name:
            found[name] = SlurmNode(name, *split_state([state]))
    return found


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
        plain(record.get("Account")),
    )


def _text_number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) < 19 else None


def _local_seconds(text: str | None) -> int:
    """Slurm's local time in seconds since the epoch; 0 where it says none."""
    try:
        return int(datetime.fromisoformat(text or "").astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        return 0


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
        plain(item.get("account")),
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
