"""What the GPUs of a host say alike, as one line: a brain reads it at a fraction of the cost of text.

    gpu_packed,host=node-1 gpus="GPU-1,GPU-2",names="power_watts,nvlink_up{link=0}",values="AAAAAADgf0A..." 1790000000
    gpu_packed,host=node-1 gpus="GPU-1,GPU-2",names="fan_speed_ratio",reasons="1" 1790000000
    gpu_packed,host=node-1,label=pid gpus="GPU-1{4711}",names="process_memory_used_bytes",values="AAAA..." 1790000000

`values` is base64 (RFC 4648) of IEEE 754 float64, little-endian: for each of `gpus` one for each of `names`, which are
fields of measurement ``gpu``, variants with their label in braces. `reasons` are those of ``gpu_missing``, the same for
all of `gpus`. A MIG instance stands behind its GPU and a ``|``. Where a line of values has a `label`, all names are
variants of it and each of `gpus` has its value in braces. Only this form is read, with the fields in this order, and
only brains read it: for whoever else receives it, it is made plain again (`in_plain_lines`).
"""

from __future__ import annotations

import re
import sys
from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from tocsin.domain.metrics import split_variant
from tocsin.domain.reading import Gpu
from tocsin.store.line_protocol.grammar import LineError, tag_text
from tocsin.store.points import CONTROL, GPU, MISSING, PACKED

ACCEPTS_PACKED = "tocsin-packed"
"""Header in answers of a receiver that reads these lines."""
BEGIN = f"{PACKED},"
FLOAT = 8
"""Bytes of a number."""
MOST_ALIKE = 16
"""GPUs of a line of reasons: what is made of it must not be out of all proportion to its bytes."""
MOST_ROWS = 64
"""GPUs that are written to one line of values: 300 numbers of each are 200 KB."""
_KINDS = 256
"""Sets of keys that a writer remembers, some KB each: an agent has one for each of its GPUs and their processes."""
_OF_ONE = frozenset({"pid", "instance"})
"""Labels whose values no two GPUs have in common."""
_SIMPLE = re.compile(r"[\w.:@/-]+", re.ASCII)
"""Names of hosts and GPUs, and values of labels, that can stand in such a line."""


def member_of(gpu: Gpu) -> str:
    """How a GPU is called in `gpus`; empty where its names, or its host's, cannot stand there."""
    if not all(map(_SIMPLE.fullmatch, (gpu.host, gpu.uuid, gpu.parent or gpu.uuid))):
        return ""
    return f"{gpu.parent}|{gpu.uuid}" if gpu.parent else gpu.uuid


# ---------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class Packing:
    """How some of a GPU's values are packed: `names` is their text, `pick` takes their numbers out of all. `label` and
    `value` are of variants that have a line of their own."""

    label: str
    value: str
    names: str
    pick: Callable[[Sequence[float]], Sequence[float]]

    def numbers(self, values: Sequence[float]) -> bytes:
        """The numbers of these among the `values` of all keys."""
        found = array("d", self.pick(values))
        if sys.byteorder == "big":
            found.byteswap()
        return found.tobytes()


@lru_cache(maxsize=_KINDS)
def packings_of(keys: tuple[str, ...]) -> tuple[Packing, ...] | None:
    """How the values of a GPU's `keys`, in that order, are packed; None where a label's value cannot stand there."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for place, key in enumerate(keys):
        name, label, value = split_variant(key)
        if not _SIMPLE.fullmatch(name + value) or (label and not value):
            return None
        apart = (label, value) if label in _OF_ONE else ("", "")
        groups.setdefault(apart, []).append((place, name_text(name, label if not apart[0] else "", value)))
    return tuple(
        Packing(label, value, ",".join(name for _, name in members), _picker([place for place, _ in members]))
        for (label, value), members in groups.items()
    )


def name_text(name: str, label: str, value: str) -> str:
    """How a metric or variant is called in `names`."""
    field = name.removeprefix("gpu_")
    return f"{field}{{{label}={value}}}" if label else field


def _picker(places: Sequence[int]) -> Callable[[Sequence[float]], Sequence[float]]:
    whole = slice(places[0], places[-1] + 1)
    return itemgetter(whole) if len(places) == whole.stop - whole.start else itemgetter(*places)


def values_line(host: str, label: str, names: str, rows: Iterable[tuple[str, bytes]], at: str) -> str:
    """The line of `rows`, GPUs as `gpus` names them with their numbers."""
    gpus, numbers = zip(*rows, strict=True)
    head = f"{BEGIN}host={host}" + (f",label={label}" if label else "")
    packed = b2a_base64(b"".join(numbers), newline=False).decode()
    return f'{head} gpus="{",".join(gpus)}",names="{names}",values="{packed}" {at}\n'


def reasons_line(host: str, names: str, reasons: str, gpus: Iterable[str], at: str) -> str:
    """The line of GPUs that lack the same for the same `reasons`."""
    return f'{BEGIN}host={host} gpus="{",".join(gpus)}",names="{names}",reasons="{reasons}" {at}\n'


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class PackedLine:
    """What such a line says, in its parts; `values` is None where it has `reasons`."""

    head: str
    gpus: str
    names: str
    values: bytes | None
    reasons: str
    stamp: str

    def by_label(self, common: str) -> list[tuple[str, str, list[tuple[int, str]]]]:
        """Label and its value, both empty for none, with the places and fields of the names that have them. Raises
        LineError where a name has a label, and the line has one in `common`."""
        groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for place, name in enumerate(self.names.split(",")):
            field, label, value = cut_name(name)
            if label and common:
                raise LineError(f"{name[:60]!r} has a label, and so has its line")
            groups.setdefault((label, value), []).append((place, field))
        return [(label, value, fields) for (label, value), fields in groups.items()]

    def check(self) -> None:
        """Raise LineError where there are not as many numbers, or reasons, as it takes, or too many GPUs of these."""
        gpus, names = self.gpus.count(",") + 1, self.names.count(",") + 1
        if self.values is not None and len(self.values) != gpus * names * FLOAT:
            raise LineError(f"{len(self.values)} bytes of values for {gpus} gpus and {names} names")
        if self.values is None and self.reasons.count(",") + 1 != names:
            raise LineError(f"{self.reasons.count(',') + 1} reasons for {names} names")
        if self.values is None and gpus > MOST_ALIKE:
            raise LineError(f"{gpus} gpus that lack the same are more than {MOST_ALIKE}; say it of fewer at once")

    def rows(self) -> Iterator[list[float]]:
        """The numbers of each GPU. Raises LineError where there are more or fewer than names."""
        self.check()
        found, count = array("d", self.values or b""), self.names.count(",") + 1
        if sys.byteorder == "big":
            found.byteswap()
        return (found[start : start + count].tolist() for start in range(0, len(found), count))


def cut_packed(line: str) -> PackedLine:
    """`line` in its parts, in time that grows with its length. Raises LineError."""
    head, _, rest = line.partition(' gpus="')
    gpus, _, rest = rest.partition('",names="')
    names, _, rest = rest.partition('",')
    kind, _, rest = rest.partition('="')
    raw, closed, stamp = rest.partition('" ')
    if kind not in ("values", "reasons") or not (gpus and names and closed) or '"' in stamp:
        raise LineError(f'{PACKED} is no head, gpus="...",names="...", values="..." or reasons="...", and an instant')
    if any(not text.isprintable() and CONTROL.search(text) for text in (gpus, names)):
        raise LineError(f"a control character stands in gpus or names of {PACKED}")
    if kind == "reasons":
        return PackedLine(head, gpus, names, None, raw, stamp)
    try:
        return PackedLine(head, gpus, names, a2b_base64(raw, strict_mode=True), "", stamp)
    except ValueError as error:
        raise LineError(f"values of {PACKED} are not base64: {error}") from None


def cut_name(name: str) -> tuple[str, str, str]:
    """One of `names` as field, label and the label's value; the last two are empty for a plain one. Raises LineError
    where the braces hold no label and value."""
    field, opened, rest = name.partition("{")
    label, _, value = rest.removesuffix("}").partition("=")
    if opened and not (label and value and rest.endswith("}")):
        raise LineError(f"{name[:60]!r} is no field{{label=value}}")
    return field, label, value


def cut_member(member: str) -> tuple[str, str]:
    """One of `gpus` as what names the GPU, and the label's value, empty where there is none."""
    name, _, value = member.partition("{")
    return name, value.removesuffix("}")


def cut_gpu(name: str) -> tuple[str, str]:
    """What names a GPU as its UUID, and that of its GPU where it is a MIG instance, else empty."""
    parent, _, uuid = name.rpartition("|")
    return uuid, parent


# ---------------------------------------------------------------------- for others


def in_plain_lines(text: str) -> str:
    """`text` with the packed lines as lines of ``gpu`` and ``gpu_missing``, for a receiver that reads no others."""
    if BEGIN not in text:
        return text
    return "".join(_plain(line) if line.startswith(BEGIN) else line for line in text.splitlines(keepends=True))


def _plain(line: str) -> str:
    """The lines of each GPU, one for its plain fields and one for each label; a line that cannot be read as it is."""
    try:
        packed = cut_packed(line.removesuffix("\n"))
        packed.check()
        codes = [f"{code}i" for code in packed.reasons.split(",")]
        tags = dict(tag.partition("=")[::2] for tag in packed.head.split(",")[1:])
        label, members = tags.get("label", ""), [cut_member(member) for member in packed.gpus.split(",")]
        rows = [codes] * len(members) if packed.values is None else [[*map(repr, row)] for row in packed.rows()]
        groups = packed.by_label(label)
    except LineError:
        return line
    measurement = MISSING if packed.values is None else GPU
    text = ""
    for (name, value), row in zip(members, rows, strict=True):
        uuid, parent = cut_gpu(name)
        mig = f",mig_uuid={uuid}" if parent else ""
        head = f"{measurement},gpu_uuid={parent or uuid}{mig},host={tags.get('host', '')}"
        for own, of, fields in groups:
            tag = f",{own or label}={tag_text(of or value)}" if own or label else ""
            text += f"{head}{tag} {','.join(f'{field}={row[place]}' for place, field in fields)} {packed.stamp}\n"
    return text
