"""The source over npu-smi: one table for all chips with every reading, what is dear to ask a few at a time in turn.

There is a process for each question, so health is asked where the table does not say OK, and the rest in rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tocsin.collector.device_events import DeviceEvents, words_of
from tocsin.collector.npu_smi.plugin_faults import PluginFault, PluginFileError, read_plugin_faults
from tocsin.collector.npu_smi.text import NpuChip, NpuError, codes_of, parse_info, parse_keys, parse_mapping, plain
from tocsin.collector.smi_program import Program, SmiAnswer
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.errors import Unavailable
from tocsin.domain.event import Event
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu, Missing, Reading, normalise_pci_bus_id
from tocsin.domain.vendor_metrics import ASCEND, NOT_THERE, VENDOR, VendorMetric, in_our_unit, vendor_metrics
from tocsin.rules.device_faults import FaultMeaning, fault_meaning
from tocsin.telemetry.log import logger

_log = logger("npu_smi")

DEADLINE_SECONDS = 20.0
ROUND_SECONDS = 5.0
"""How long one reading spends on the questions that go in turn (own choice)."""
_TABLE, _FAULTS, _HEALTH = "info", "faults", "health"
_SOUND = frozenset({"ok", "healthy"})
_USED, _TOTAL, _USED_RATIO = "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_used_ratio"

_BY_LEVEL = frozenset({DeviceFault.ISOLATE, DeviceFault.WATCH, DeviceFault.UNKNOWN})

Place = tuple[int, int]
"""Number of an NPU and of a chip on it."""


@dataclass(slots=True)
class _Known:
    """What is known of a chip: `answers` by question, `fresh` those of this reading, `faults` as health had them."""

    gpu: Gpu
    logic: int | None
    answers: dict[str, Mapping[str, str]] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    faults: list[tuple[FaultMeaning, str]] = field(default_factory=list)


class NpuSmiSource:
    """A source over npu-smi. Raises Unavailable where the program is missing, finds no card or does not answer."""

    name = "npu_smi"

    def __init__(
        self,
        program: Program,
        node: NodeIdentity,
        clock: Clock,
        plugin_file: Path | None = None,
        rows: Sequence[VendorMetric] | None = None,
    ) -> None:
        self._program = program
        self._node = node
        self._clock = clock
        self._plugin_file = plugin_file
        self._rows = vendor_metrics(ASCEND) if rows is None else tuple(rows)
        self._questions = list(dict.fromkeys(row.call for row in self._rows if row.call not in (_TABLE, _FAULTS)))
        self._known: dict[Place, _Known] = {}
        self._turn: deque[tuple[Place, str]] = deque()
        self._logic: dict[Place, int] = {}
        self._transitions = Transitions(self.name)
        self._events = DeviceEvents(self.name)
        self._told: set[str] = set()
        if (chips := self._table()) is None:
            raise Unavailable(f"npu-smi did not answer within {DEADLINE_SECONDS:g} s; see whether it hangs by itself")
        if not chips:
            raise Unavailable("npu-smi lists no NPU on this node")
        self._admit(chips)

    def gpus(self) -> list[Gpu]:
        return [one.gpu for one in self._known.values()]

    def read(self, now_ms: int) -> Batch:
        try:
            chips = self._table()
        except Unavailable as error:
            self._tell(str(error))
            chips = None
        if chips is None:
            readings = [self._without(one.gpu, now_ms, Missing.TIMED_OUT) for one in self._known.values()]
            return Batch(tuple(readings))
        self._admit(chips)
        self._ask_in_turn()
        listed = self._from_plugin()
        readings, events = [], []
        for chip in chips:
            known = self._known[chip.npu, chip.chip]
            faults = self._faults(chip, known, listed)
            lost = any(meaning.meaning is DeviceFault.LOST for meaning, _ in faults)
            reading = self._without(known.gpu, now_ms, Missing.LOST) if lost else self._reading(chip, faults, now_ms)
            readings.append(reading)
            events += self._standing(known.gpu, faults, now_ms)
        events += self._transitions.note(readings, now_ms)
        return Batch(tuple(readings), tuple(events))

    def close(self) -> None:
        self._program.close()

    # ------------------------------------------------------------------ asking

    def _run(self, *arguments: str) -> SmiAnswer | None:
        try:
            return self._program.run(("info", *arguments), DEADLINE_SECONDS)
        except OSError as error:
            raise Unavailable(
                f"npu-smi cannot be run ({error.strerror}); install the Ascend driver, or name the program in setting "
                "agent.npu_smi_command"
            ) from None

    def _table(self) -> list[NpuChip] | None:
        """The chips of the table; None where the program hangs."""
        if (answer := self._run()) is None:
            self._tell("npu-smi has not ended in time")
            return None
        if answer.status != 0:
            raise Unavailable(f"npu-smi ended with status {answer.status}: {_words(answer)}")
        try:
            return parse_info(answer.out)
        except NpuError as error:
            raise Unavailable(f"npu-smi's answer cannot be used: {error}: {_words(answer)}") from None

    def _admit(self, chips: Iterable[NpuChip]) -> None:
        """Let `chips` be those that are known; one that is new is asked who it is."""
        places = [(chip.npu, chip.chip) for chip in chips]
        if any(place not in self._known for place in places):
            self._logic = parse_mapping(_out(self._run("-m")))
        before = self._known
        self._known = {}
        for chip in chips:
            place = chip.npu, chip.chip
            self._known[place] = before.get(place) or self._identified(chip)
            self._known[place].fresh.clear()
        if self._known.keys() != before.keys():
            self._turn = deque((place, question) for question in self._questions for place in self._known)

    def _identified(self, chip: NpuChip) -> _Known:
        """A chip by the identity of its die, which survives a change of slot; else by its place on the host."""
        place = "-i", str(chip.npu), "-c", str(chip.chip)
        board = parse_keys(_out(self._run("-t", "board", *place)))
        die = next((board[key] for key in ("vdieid", "dieid") if _said(board.get(key, ""))), "")
        name = "".join(die.split())[:64] or f"{self._node.host}-{chip.npu}-{chip.chip}"
        logic = chip.phy if chip.phy is not None else self._logic.get((chip.npu, chip.chip))
        labels = {VENDOR: ASCEND}
        if _said(firmware := board.get("firmwareversion", "")):
            labels["firmware_version"] = firmware[:64]
        bus = chip.bus if _said(chip.bus) else board.get("pciebusinfo", "")
        gpu = self._node.gpu(
            f"NPU-{name}",
            index=logic if logic is not None else chip.npu,
            model=f"Ascend {chip.name.removeprefix('Ascend').strip()}"[:64],
            serial=board.get("serialnumber", "")[:64] if _said(board.get("serialnumber", "")) else "",
            pci_bus_id=normalise_pci_bus_id(bus),
        )
        return _Known(replace(gpu, labels={**labels, **gpu.labels}), logic)

    def _ask_in_turn(self) -> None:
        """Go on with the round of questions for as long as a reading may take, but never the same one twice."""
        until = self._clock.monotonic() + ROUND_SECONDS
        for _ in range(len(self._turn)):
            (npu, chip), question = self._turn[0]
            self._turn.rotate(-1)
            known = self._known[npu, chip]
            if question in known.refused:
                continue
            answer = self._run("-t", question, "-i", str(npu), "-c", str(chip))
            if answer is None:
                return
            keys = parse_keys(answer.out)
            if answer.status != 0 or not keys:
                known.refused.add(question)
            else:
                known.answers[question] = keys
                known.fresh.add(question)
            if self._clock.monotonic() >= until:
                return

    # ------------------------------------------------------------------ values

    def _reading(self, chip: NpuChip, faults: Sequence[tuple[FaultMeaning, str]], now_ms: int) -> Reading:
        known = self._known[chip.npu, chip.chip]
        values: dict[str, float] = {}
        missing: dict[str, Missing] = {}
        for row in self._rows:
            for name, value in self._cells(row, chip, known, faults):
                if isinstance(value, Missing):
                    if name not in values:
                        missing.setdefault(name, value)
                elif name not in values:
                    values[name] = value
                    missing.pop(name, None)
        used, total = values.get(_USED), values.get(_TOTAL)
        if used is None or not total:
            missing[_USED_RATIO] = missing.get(_USED, Missing.BLANK)
        else:
            values[_USED_RATIO] = used / total
        return Reading(known.gpu, now_ms, values, missing)

    def _cells(
        self, row: VendorMetric, chip: NpuChip, known: _Known, faults: Sequence[tuple[FaultMeaning, str]]
    ) -> Iterable[tuple[str, float | Missing]]:
        name = row.name(METRICS[row.metric].label)
        if row.call == _FAULTS:
            seen = any(meaning.code == row.key for meaning, _ in faults)
            return [(name, row.value(float(seen)))]
        if row.call == _TABLE and row.key == "processes":
            return [(name, row.value(float(len(chip.processes))))]
        if row.call == _TABLE and row.key == "pid:":
            label = METRICS[row.metric].label
            found = ((pid, row.value(text)) for pid, text in chip.processes.items())
            return [(row.name(label, str(pid)), value) for pid, value in found if not isinstance(value, Missing)]
        if row.call == _TABLE:
            return [(name, _summed(row, chip.cells))]
        if row.call in known.refused:
            return [(name, Missing.UNSUPPORTED)]
        if row.call not in known.fresh and not METRICS[row.metric].static:
            return [(name, Missing.NOT_DUE)]
        return [(name, _summed(row, known.answers.get(row.call, {})))]

    def _without(self, gpu: Gpu, now_ms: int, reason: Missing) -> Reading:
        return Reading(gpu, now_ms, {}, {row.metric: reason for row in self._rows if not row.label_value})

    # ------------------------------------------------------------------ faults

    def _faults(
        self, chip: NpuChip, known: _Known, listed: Mapping[int, Sequence[PluginFault]]
    ) -> list[tuple[FaultMeaning, str]]:
        """What health and the device plugin say of a chip now; what health said last stays where it does not answer."""
        if chip.health.lower() in _SOUND:
            known.faults = []
        elif (found := self._health(chip)) is not None:
            known.faults = found
        own = listed.get(known.logic, ()) if known.logic is not None else ()
        faults = dict.fromkeys(known.faults)
        codes = {meaning.code for meaning, _ in faults}
        for fault in own:
            if fault.code not in codes:
                meaning = _meaning_at_level(fault)
                faults[replace(meaning, code=fault.code), _named(fault.code, fault.level)] = None
        return list(faults)

    def _health(self, chip: NpuChip) -> list[tuple[FaultMeaning, str]] | None:
        """The faults behind a health that is not OK; None where npu-smi does not say."""
        answer = self._run("-t", _HEALTH, "-i", str(chip.npu), "-c", str(chip.chip))
        if answer is None:
            return None
        keys = parse_keys(answer.out)
        word = keys.get("healthstatus") or keys.get("health") or chip.health
        codes = codes_of(keys.get("errorcode", ""))
        if not codes:
            said = keys.get("errorinformation", "")
            words = f"health {word}" + (f": {said[:80]}" if _said(said) else "")
            return [(fault_meaning(ASCEND, f"health:{word}"), words)]
        return [(fault_meaning(ASCEND, code), f"{_named(code)}, health {word}") for code in codes]

    def _from_plugin(self) -> dict[int, list[PluginFault]]:
        if self._plugin_file is None:
            return {}
        found: dict[int, list[PluginFault]] = {}
        try:
            for fault in read_plugin_faults(self._plugin_file):
                found.setdefault(fault.card, []).append(fault)
        except PluginFileError as error:
            self._tell(f"agent.npu_faults {self._plugin_file} {error}")
        return found

    def _standing(self, gpu: Gpu, faults: Sequence[tuple[FaultMeaning, str]], now_ms: int) -> list[Event]:
        """Events of the faults but those that a reading tells: of a link by its metric, of a loss by its absence."""
        told = [one for one in faults if one[0].meaning not in (DeviceFault.LINK, DeviceFault.LOST)]
        return self._events.standing(gpu, words_of(told), now_ms)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            _log.warning("npu-smi (told once)", problem=problem)


def _summed(row: VendorMetric, answer: Mapping[str, str]) -> float | Missing:
    """The value of a row; a key with ``+`` is a sum, blank unless all of its parts are there."""
    total = 0.0
    for key in row.key.split("+"):
        if (text := answer.get(plain(key))) is None:
            return Missing.UNSUPPORTED
        value = in_our_unit("count", text) if "+" in row.key else row.value(text)
        if isinstance(value, Missing):
            return value
        total += value
    return row.value(total) if "+" in row.key else total


def _meaning_at_level(fault: PluginFault) -> FaultMeaning:
    """What a fault means; where our table knows no more of its code than a level, the site's level wins."""
    meaning = fault_meaning(ASCEND, fault.code)
    if (
        meaning.meaning in _BY_LEVEL
        and (level := fault_meaning(ASCEND, f"level:{fault.level}")).provenance != "unknown"
    ):
        return level
    return meaning


def _named(code: str, level: str = "") -> str:
    return f"code {code}" + (f", level {level}" if level else "")


def _said(text: str) -> bool:
    return text.strip().lower() not in NOT_THERE


def _out(answer: SmiAnswer | None) -> str:
    return answer.out if answer is not None and answer.status == 0 else ""


def _words(answer: SmiAnswer) -> str:
    return " ".join((answer.out + " " + answer.err).split())[:200] or "it printed nothing"
