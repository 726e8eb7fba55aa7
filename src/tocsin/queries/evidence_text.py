"""README.txt of an evidence bundle: text for a ticket, of facts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.domain.clock import to_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.grouping import grouped
from tocsin.domain.reading import Gpu
from tocsin.domain.versions import COMPONENTS
from tocsin.domain.versions import versions_of as known
from tocsin.domain.words import counted
from tocsin.queries.evidence_tables import AROUND_MS, spec_seen
from tocsin.rules.xid_explain import WORDS

UNKNOWN = "not known"
MOST_TRIED = 50
"""Actions that the text lists."""
_SUPPORT = frozenset({"contact_support", "contact_support_if_repeated", "field_diagnostics"})
VERSIONS = ("driver", "vbios", "inforom", "gsp_firmware")
"""Components that a vendor asks for; of the others those stand there that are known."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the text rests on; `left_out` says what a bound kept out of the bundle."""

    gpu: Gpu
    start_ms: int
    end_ms: int
    made_ms: int
    faults: Sequence[Event]
    tried: Sequence[DecisionStatus]
    entries: int
    withheld: int
    peers: int
    signed: bool
    with_owners: bool
    left_out: Sequence[str] = field(default_factory=list)


def versions_of(gpu: Gpu) -> dict[str, str]:
    """Versions by what they are of; empty where a vendor asks for one that no source reported."""
    told = known(gpu.labels)
    return {COMPONENTS[key].name: told.get(key, "") for key in dict.fromkeys((*VERSIONS, *told))}


def readme(told: Told) -> bytes:
    """The text."""
    gpu = told.gpu
    lines = [
        f"GPU {gpu.uuid}: evidence for a support case",
        *(["SIMULATED: a simulator made this GPU; do not send this."] if gpu.simulated else []),
        "",
        f"Span: {to_iso(told.start_ms)} to {to_iso(told.end_ms)}. Made: {to_iso(told.made_ms)}. All times are UTC.",
        "",
        "Device",
        *_device(gpu),
        "",
        "What failed",
        *_failed(told.faults),
        "",
        "What was tried",
        *_tried(told.tried),
        "",
        "What is asked for",
        _asked(told.faults),
        "",
        "Files",
        *_files(told),
    ]
    return ("\n".join(lines) + "\n").encode()


def _device(gpu: Gpu) -> list[str]:
    facts = {
        "model": gpu.model,
        "serial": gpu.serial,
        "part number": gpu.labels.get("part_number", ""),
        "PCI bus id": gpu.pci_bus_id,
        "host": gpu.host,
        "index": "" if gpu.index is None else str(gpu.index),
        **versions_of(gpu),
    }
    return [f"  {name}: {value or UNKNOWN}" for name, value in facts.items()]


def _failed(faults: Sequence[Event]) -> list[str]:
    if not faults:
        return ["  no hardware error was seen in the span"]
    groups = grouped(((event.kind, event.code), event) for event in faults)
    lines = []
    for (kind, code), mine in sorted(groups.items()):
        first, last = min(one.at_ms for one in mine), max(one.at_ms for one in mine)
        when = to_iso(first) if first == last else f"{to_iso(first)} to {to_iso(last)}"
        what = str(kind)
        if kind is EventKind.XID:
            spec = spec_seen(mine[-1])
            action = WORDS.get(spec.vendor_action, "") or spec.vendor_action or "names none"
            what = f"XID {code} {spec.name} ({spec.severity}); NVIDIA's action: {action}"
        lines.append(f"  {counted(len(mine), 'time')}, {when}: {what}")
    return lines


def _tried(tried: Sequence[DecisionStatus]) -> list[str]:
    done = [one for one in tried if one.outcome is not None and one.decision.action is not ActionKind.NOTIFY]
    if not done:
        return ["  nothing that Tocsin did is on record in the span"]
    lines = []
    for one in done[-MOST_TRIED:]:
        assert one.outcome is not None
        name = one.decision.action.value.replace("_", " ")
        lines.append(f"  {to_iso(one.outcome.at_ms)}: {name}, {one.outcome.status.value.replace('_', ' ')}")
    return [*([f"  {len(done) - MOST_TRIED} earlier ones are left out"] if len(done) > MOST_TRIED else []), *lines]


def _asked(faults: Sequence[Event]) -> str:
    specs = [spec_seen(event) for event in faults if event.kind is EventKind.XID]
    if any(spec.vendor_action in _SUPPORT for spec in specs):
        return "  Please say whether this GPU is to be replaced (RMA): NVIDIA's catalogue names support for its errors."
    if any(spec.severity is Severity.CRITICAL for spec in specs) or faults:
        return "  Please say what these errors mean for this GPU, and whether diagnostics or a replacement follow."
    return "  Nothing: no hardware error was seen in the span."


def _files(told: Told) -> list[str]:
    minutes = AROUND_MS // 60_000
    seal = "signed with the key of its journal (HMAC-SHA-256)" if told.signed else "UNSIGNED: its journal has no key"
    hidden = "" if told.with_owners else "; owners, process names and people are left out"
    return [
        f"  journal.jsonl: {told.entries} {'entry' if told.entries == 1 else 'entries'} of the hash-chained journal, "
        f"{told.withheld} of them by number and hash alone{hidden}",
        "  xids.csv: events with what NVIDIA's catalogue says of them",
        f"  telemetry.csv: values {minutes} minutes before and after each fault, a missing one with its reason",
        f"  peers.csv: median and range of {counted(told.peers, 'like GPU')} at the same instants",
        f"  MANIFEST.sha256: checksums; {seal}",
        "  `tocsin evidence verify FILE` checks them",
        *(f"  Left out: {what}" for what in told.left_out),
    ]
