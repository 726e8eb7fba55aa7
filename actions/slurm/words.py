"""Small pieces that both forms of Slurm's output share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tocsin.actions.slurm.hostlist import expand

_GPUS = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?::[A-Za-z][^:,()=]*)?[:=](\d+)")
_INDICES = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu[^,()]*\(IDX:([\d,-]+)\)")
_EMPTY = frozenset({"", "(null)", "None", "N/A", "none"})
MOST_GPUS = 1024
"""More than any node has."""


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
    return sum(int(number) for number in _GPUS.findall(re.sub(r"\([^)]*\)", "", plain(gres))))


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
    if array and task is not None:
        return f"{array}_{task}"
    return str(leader or number)


def gpus_by_node(nodes: tuple[str, ...], texts: list[object]) -> Mapping[str, frozenset[int]]:
    """Indices by node from one gres text for each node, in order; empty where the numbers of both differ."""
    if len(nodes) != len(texts):
        return {}
    found = {node: gpu_indices(text) for node, text in zip(nodes, texts, strict=True)}
    return {node: indices for node, indices in found.items() if indices is not None}
