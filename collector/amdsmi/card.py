"""One AMD card, or one part of a partitioned one: who it is, and one look at it by the table of vendor metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin.collector.amdsmi.library import ABSENT, CLOSED, MAYBE_LOST, AmdFailure, AmdSmi, ErrorRecord, missing_of
from tocsin.collector.pci_tree import folder_of
from tocsin.collector.source import NodeIdentity
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Missing, normalise_pci_bus_id
from tocsin.domain.vendor_metrics import AMD, NOT_THERE, VENDOR, VendorMetric

_PAGE_STATES = {"RESERVED": 0, "PENDING": 1, "UNRESERVABLE": 2}
"""``amdsmi_memory_page_status_t``."""
_MOST_PARTS = 1_024
"""Links or processes of one card that are taken."""
_MOST_NUMBER = 1 << 64
_USED, _TOTAL, _USED_RATIO = "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_used_ratio"


@dataclass(slots=True)
class Look:
    """What one look at a card found; `codes` are the errors that calls ended with, `answered` whether any did not."""

    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    codes: set[int] = field(default_factory=set)
    records: list[ErrorRecord] = field(default_factory=list)
    answered: bool = False

    @property
    def closed(self) -> bool:
        return not self.codes.isdisjoint(CLOSED)

    @property
    def maybe_lost(self) -> bool:
        """Whether nothing came and what came instead is what a card answers that is gone."""
        return not self.answered and not self.codes.isdisjoint(MAYBE_LOST)


def identify(library: AmdSmi, card: int, node: NodeIdentity) -> Gpu:
    """The card at position `card`; what the library does not tell stays unknown.

    Its name is the chip's serial number, which survives a restart and a change of slot, as the exporter of AMD has it,
    with the number of the part behind it where it is not the first. Without a serial it is the library's UUID.
    """
    asic = _dict(library, card, "amdsmi_get_gpu_asic_info")
    serial = _text(asic.get("asic_serial"))
    name = serial or _text(_or_none(library, card, "amdsmi_get_gpu_device_uuid")) or f"{node.host}/card{card}"
    part = _dict(library, card, "amdsmi_get_gpu_kfd_info").get("current_partition_id")
    number = part if isinstance(part, int) and 0 < part < _MOST_PARTS else 0
    labels = {VENDOR: AMD}
    if (layout := _text(_or_none(library, card, "amdsmi_get_gpu_compute_partition"))) and layout != "SPX":
        labels["compute_partition"] = layout
    if (layout := _text(_or_none(library, card, "amdsmi_get_gpu_memory_partition"))) and layout != "NPS1":
        labels["memory_partition"] = layout
    if driver := _text(_dict(library, card, "amdsmi_get_gpu_driver_info").get("driver_version")):
        labels["driver_version"] = driver
    gpu = node.gpu(
        f"AMD-{name}/part{number}" if number else f"AMD-{name}",
        index=card,
        model=_text(asic.get("market_name")),
        serial=serial,
        pci_bus_id=normalise_pci_bus_id(_text(_or_none(library, card, "amdsmi_get_gpu_device_bdf"))),
    )
    return replace(gpu, labels={**labels, **gpu.labels})


def _or_none(library: AmdSmi, card: int, call: str) -> Any:
    try:
        return library.ask(card, call)
    except AmdFailure:
        return None


def _dict(library: AmdSmi, card: int, call: str) -> Mapping[str, Any]:
    found = _or_none(library, card, call)
    return found if isinstance(found, dict) else {}


def _text(found: object) -> str:
    text = str(found).strip()[:64] if isinstance(found, str) else ""
    return "" if text.lower() in NOT_THERE else text


class Card:
    """Asks one card; what it does not have is asked once. One thread at a time."""

    def __init__(self, library: AmdSmi, number: int, gpu: Gpu, rows: Sequence[VendorMetric]) -> None:
        self.number = number
        self.gpu = gpu
        self._library = library
        self._rows = rows
        self._absent: dict[str, Missing] = {}
        self._fixed: dict[str, float] = {}
        self._cursor: int | None = None

    def look(self, *, slow: bool) -> Look:
        """One look; without `slow` what need not be asked each time is not due."""
        found = Look()
        answers: dict[str, Any] = {}
        for row in self._rows:
            if row.metric in found.values and not row.label_value:
                continue
            if row.slow and not slow:
                self._not_now(row, found)
                continue
            answer = self._answer(row.call, answers, found)
            for name, value in _cells(row, answer):
                _add(found, name, value)
        _add_used_share(found)
        if not found.answered:
            # Limits that are remembered are no answer: a card that says nothing has no value.
            found.values.clear()
        elif slow:
            self._remember(found)
            self._read_records(found)
        return found

    def _answer(self, call: str, answers: dict[str, Any], found: Look) -> Any:
        """What `call` answers, asked once a look; the reason where it fails."""
        if call in answers:
            return answers[call]
        answer: Any = self._absent.get(call)
        if answer is None:
            try:
                answer = self._library.ask(self.number, call)
                found.answered = True
            except AmdFailure as failure:
                found.codes.add(failure.code)
                answer = missing_of(failure.code)
                if failure.code in ABSENT:
                    self._absent[call] = answer
        answers[call] = answer
        return answer

    def _not_now(self, row: VendorMetric, found: Look) -> None:
        name = row.name(METRICS[row.metric].label)
        if name in self._fixed:
            _add(found, name, self._fixed[name])
        elif (reason := self._absent.get(row.call)) is not None:
            _add(found, name, reason)
        else:
            _add(found, name, Missing.NOT_DUE)

    def _remember(self, found: Look) -> None:
        """Limits do not change: they go with every reading, so that rules can compare."""
        self._fixed = {name: value for name, value in found.values.items() if name in METRICS and METRICS[name].static}

    def _read_records(self, found: Look) -> None:
        """New records of the card's error log; those from before the first look are past."""
        call = "records"
        if call in self._absent:
            return
        try:
            records, cursor = self._library.records(self.number, self._cursor or 0)
        except AmdFailure as failure:
            if failure.code in ABSENT:
                self._absent[call] = Missing.UNSUPPORTED
            return
        if self._cursor is not None:
            found.records = records
        self._cursor = cursor


def _add(found: Look, name: str, value: float | Missing) -> None:
    """A value outranks reasons, and the first of either stays."""
    if isinstance(value, Missing):
        if name not in found.values:
            found.missing.setdefault(name, value)
    elif name not in found.values:
        found.values[name] = value
        found.missing.pop(name, None)


def _add_used_share(found: Look) -> None:
    used, total = found.values.get(_USED), found.values.get(_TOTAL)
    if used is None or not total:
        _add(found, _USED_RATIO, found.missing.get(_USED, Missing.BLANK))
    else:
        _add(found, _USED_RATIO, used / total)


def _cells(row: VendorMetric, answer: Any) -> Iterator[tuple[str, float | Missing]]:
    """The values of a row in `answer`, by name; of a list each part has its own."""
    label = METRICS[row.metric].label
    if isinstance(answer, Missing):
        yield row.name(label), answer
    elif row.key.endswith("[]"):
        parts = answer.get(row.key[:-2]) if isinstance(answer, dict) else None
        for number, one in enumerate(parts[:_MOST_PARTS] if isinstance(parts, list) else ()):
            if not isinstance(value := row.value(one), Missing):
                yield row.name(label, str(number)), value
    elif ":" in row.key:
        name, _, path = row.key.partition(":")
        for one in answer[:_MOST_PARTS] if isinstance(answer, list) else ():
            who, value = _dug(one, name), row.value(_dug(one, path))
            if isinstance(who, int) and abs(who) < _MOST_NUMBER and not isinstance(value, Missing):
                yield row.name(label, str(who)), value
    else:
        yield row.name(label), row.value(_single(row.key, answer))


def _single(key: str, answer: Any) -> Any:
    if not key:
        return answer
    if key.startswith("#"):
        return _counted(key, answer)
    if "*" in key:
        factors = [_dug(answer, name) for name in key.split("*")]
        # A Python integer has no largest; what no field of the library can hold is no factor.
        known = [float(one) for one in factors if isinstance(one, int | float) and abs(one) < _MOST_NUMBER]
        return known[0] * known[1] if len(known) == len(factors) == 2 else None
    return _dug(answer, key)


def _counted(key: str, answer: Any) -> Any:
    """How many parts a list has: ``#`` all, ``#A+#B`` those of these states."""
    if not isinstance(answer, list):
        return None
    states = {_PAGE_STATES[name.lstrip("#")] for name in key.split("+") if name != "#"}
    return len([one for one in answer if not states or _dug(one, "status") in states])


def _dug(answer: Any, path: str) -> Any:
    for name in path.split("."):
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer


def is_gone(sys: Path, pci_bus_id: str) -> bool:
    """Whether the kernel no longer has the PCI device, or reads nothing but ones from it; no where nobody can tell."""
    if not pci_bus_id or not (sys / "bus/pci/devices").is_dir():
        return False
    folder = folder_of(sys, pci_bus_id)
    try:
        with (folder / "config").open("rb", buffering=0) as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return not folder.exists()
