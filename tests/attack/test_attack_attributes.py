"""What nodes send of their GPUs costs who reads it no more than its bytes do."""

from __future__ import annotations

import json

import pytest

from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Finding, Severity
from tocsin.domain.node_fault import NodeFault
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.card_words import Names
from tocsin.rules.load import load_rules
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0, gpu
from tocsin_testing.growth import MOST, growth
from tocsin_testing.rule_runs import Run, instant

NAMES = Names([Reading(Gpu("GPU-1111", "node-1", index=3), T0, {})])
LONG = "p" * 1_025
RULES = load_rules()


@pytest.mark.parametrize("piece", ["p", "p.", "a-", "GPU-1 ", "a GPU 1 on ", "2026-01-01T00:00:0", "gpu:"])
def test_the_words_of_a_card_take_what_their_letters_take(piece: str) -> None:
    """Before: a name of 256 KB without blanks took its length squared."""
    assert growth(lambda size: f"pool {piece * size} GPU x", NAMES.plain, 1_000) < MOST


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("node-1 GPU 3 on node-1: too hot", "node-1 GPU 3: too hot"),
        ("(GPU-1111 on node-1.)", "(node-1 GPU 3.)"),
        ("a.b-c GPU 12 on a.b-c, GPU-1111 on node-2", "a.b-c GPU 12, node-1 GPU 3 on node-2"),
    ],
)
def test_a_host_is_told_once(words: str, told: str) -> None:
    assert NAMES.plain(words) == told


def info(field: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'gpu_info,gpu_uuid=GPU-1,host=node-a model="H100",index=0i,{field}="{escaped}" {T0}'


@pytest.mark.parametrize("field", ["pool", "rack", "serial", "pci_bus_id", "mig_profile"])
def test_an_attribute_without_end_is_refused_by_its_name_and_costs_no_value(field: str) -> None:
    """Before: each could have 256 KB, and every reader's texts took them up."""
    lines = [f"gpu,gpu_uuid=GPU-1,host=node-a power_watts=300 {T0}", info(field, LONG)]
    found = decode("\n".join(lines), precision="ms", now_ms=T0)
    (bad,) = found.rejected
    told = f"{field} = '{'p' * 40}'... has 1025 characters, more than 1024; shorten it"
    assert (bad.number, bad.problem) == (2, told)
    assert [one.values for one in found.batch.readings] == [{"gpu_power_watts": 300.0}]
    (kept,) = decode(info(field, LONG[1:]), precision="ms", now_ms=T0).batch.readings
    assert getattr(kept.gpu, field) == LONG[1:]


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ({"a": LONG}, "label a = "),
        ({LONG: "a"}, "the name of a label = "),
        ({f"l{n}": "" for n in range(129)}, "labels has 129 labels, more than 128; send fewer of them"),
    ],
)
def test_labels_without_end_are_refused(labels: dict[str, str], problem: str) -> None:
    (bad,) = decode(info("labels", json.dumps(labels)), precision="ms", now_ms=T0).rejected
    assert bad.problem.startswith(problem)
    assert len(bad.problem) < 200


def findings(kind: EventKind, code: int, severity: Severity | None, message: str) -> list[Finding]:
    """What the rules that ship make of one event that is said."""
    run = Run(RULES)
    run.step(0, {"temperature_celsius": 50.0})
    said = Event(kind, gpu().uuid, gpu().host, instant(1), code=code, message=message, severity=severity)
    return run.step(1, {"temperature_celsius": 50.0}, events=[said]).active


CODES = [
    *((EventKind.XID, code, severity) for code in (13, 48, 79, 149) for severity in (None, Severity.CRITICAL)),
    *((EventKind.SXID, code, None) for code in (11004, 12028, 20034)),
    *((EventKind.DEVICE_FAULT, int(code), None) for code in DeviceFault),
    *((EventKind.NODE_FAULT, int(code), None) for code in NodeFault),
    *((kind, 1, None) for kind in (EventKind.GPU_LOST, EventKind.ALLOCATOR_OOM, EventKind.MAINTENANCE_NOTICE)),
]


def test_a_finding_repeats_no_more_of_a_message_than_people_read() -> None:
    """Before: one message of 240 KB made each finding of it, and each list of findings, as long."""
    seen = 0
    for kind, code, severity in CODES:
        short, long = (findings(kind, code, severity, "x" * letters) for letters in (1_001, 100_000))
        assert short == long
        for one in short:
            seen += any("x" * 999 + "…" in evidence.text for evidence in one.evidence)
            assert all(len(evidence.text) <= 1_100 for evidence in one.evidence)
            assert max(len(one.sentence), len(one.sentence_zh)) <= 1_500
    assert seen >= len(DeviceFault)
