"""Faults of cards without XIDs, grouped by cause as those of NVIDIA's are: one cause, one card, its effects in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tocsin.domain.clock import SECOND
from tocsin.domain.device_fault import DeviceFault
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu
from tocsin.queries.card_life import record_of
from tocsin.queries.card_words import Names, headline
from tocsin.rules.incidents import collapse
from tocsin.topology.topology import Topology
from tocsin_testing.builders import gpu, reading
from tocsin_testing.rule_runs import Run, Values, instant

HIVE = [gpu(n, labels={"vendor": "amd"}, model="AMD Instinct MI300X") for n in range(8)]
LINK = 'nvlink_up{link="3"}'
ALL = range(8)


def fault(card: int, meaning: DeviceFault, after_s: float = 0.0) -> Event:
    at_ms = instant(1) + 30 * SECOND + round(after_s * SECOND)
    return Event(EventKind.DEVICE_FAULT, HIVE[card].uuid, "node-1", at_ms, meaning, f"{meaning.name} {card}", "kmsg")


def told(*events: Event, down: tuple[int, ...] = ()) -> list[str]:
    """Headlines of the incidents after `events`, and links that are down from then on."""
    run = Run()
    for minute in range(6):
        values: dict[Gpu, Values] = {}
        for number, card in enumerate(HIVE):
            values[card] = {"power_watts": 600.0 + minute, LINK: 0.0 if minute > 1 and number in down else 1.0}
        found = run.step(minute, values, events=events if minute == 2 else ()).active
    names = Names([reading(card) for card in HIVE])
    topology = Topology({card.uuid: card.host for card in HIVE}, [])
    return [headline(record_of(one).trouble, names)[0] for one in collapse(found, list(events), topology)]


MEMORY, HANG, RESET, FAILED = (
    DeviceFault.MEMORY_UNCORRECTED,
    DeviceFault.HANG,
    DeviceFault.RESET,
    DeviceFault.RESET_FAILED,
)
CASES: dict[str, tuple[Callable[[], list[str]], list[str]]] = {
    "an error of memory that resets the whole hive": (
        lambda: told(fault(3, MEMORY), fault(3, HANG, 1), *(fault(n, RESET, 3) for n in ALL)),
        ["node-1 GPU 3: memory error that cannot be corrected"],
    ),
    "a reset of one card": (lambda: told(fault(2, RESET)), ["node-1 GPU 2: was reset: what ran on it is lost"]),
    "a reset of the hive": (
        lambda: told(*(fault(n, RESET, n / 10) for n in ALL)),
        ["8 GPUs of host node-1: was reset: what ran on it is lost"],
    ),
    "a link that is down at both ends": (
        lambda: told(down=(1, 5)),
        ["2 GPUs of host node-1: a link to other GPUs is down"],
    ),
    "a lost card whose peers lose their links to it": (
        lambda: told(fault(3, DeviceFault.LOST), down=(0, 1, 2, 4, 5, 6, 7)),
        ["node-1 GPU 3: fell off its PCIe bus"],
    ),
    "a job that hung and a reset that failed": (
        lambda: told(fault(2, HANG), fault(2, FAILED, 5)),
        ["node-1 GPU 2: hardware trouble"],
    ),
    "a topology that cannot be read": (
        lambda: told(fault(2, DeviceFault.LINK)),
        ["node-1 GPU 2: a link to other GPUs failed"],
    ),
    "two faults of two cards": (
        lambda: sorted(told(fault(1, MEMORY), fault(6, DeviceFault.UNKNOWN))),
        ["node-1 GPU 1: memory error that cannot be corrected", "node-1 GPU 6: a fault code that is in no table"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_cause_is_one_incident_with_its_effects_in_it(name: str) -> None:
    made, expected = CASES[name]
    assert made() == expected
