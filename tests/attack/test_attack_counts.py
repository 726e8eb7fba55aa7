"""GPUs that one node's agent makes up start no action on another node, and hold none back there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.token_site import HOSTILE, RULES, SETTLING_STEPS, VICTIM, TokenSite, token_site

MANAGERS = {"no manager": (False, None), "one that lists the host": (True, None), "one that shows GPUs": (True, 4)}
FAKES = 60


def fakes(site: TokenSite, *, sick: bool) -> str:
    """Lines about GPUs that node-a does not have."""
    now = site.clock.now_ms()
    gpus = [Gpu(f"GPU-fake-{n}", HOSTILE, index=10 + n) for n in range(FAKES)]
    events = [Event(EventKind.XID, one.uuid, HOSTILE, now, code=79, message="x", source="kernel") for one in gpus]
    values = {"gpu_temperature_celsius": 50.0, "gpu_utilization_ratio": 0.5}
    return encode(Batch(readings=[Reading(one, now, values) for one in gpus], events=events if sick else []))


@pytest.mark.parametrize("manager", MANAGERS)
def test_healthy_fakes_start_no_drain_of_another_node(tmp_path: Path, manager: str) -> None:
    managed, shown = MANAGERS[manager]
    with token_site(tmp_path, managed=managed, shown=shown) as site:
        for lost in (set(), {"GPU-node-c-0", "GPU-node-d-0"}, {"GPU-node-b-0"}):
            site.lost |= lost
            site.steps(SETTLING_STEPS)
        assert site.started("node-c") | site.started("node-d")
        assert site.started(VICTIM) == set()
        assert {"capacity", "max_share"} <= site.held(VICTIM)
        for _ in range(SETTLING_STEPS + 2):
            site.step([fakes(site, sick=False)])
        assert site.started(VICTIM) == set()
        assert {"capacity", "max_share"} <= site.held(VICTIM)


@pytest.mark.parametrize("manager", MANAGERS)
def test_sick_fakes_hold_back_no_more_than_the_real_gpus_all_failed(tmp_path: Path, manager: str) -> None:
    """node-a is out of service, as it may be for a fault of its own."""
    managed, shown = MANAGERS[manager]
    started = {}
    for attacked in (False, True):
        with token_site(tmp_path / str(attacked), managed=managed, shown=shown) as site:
            site.steps(SETTLING_STEPS)
            site.out |= {HOSTILE}
            site.lost |= {one.uuid for one in site.gpus[HOSTILE]}
            for _ in range(SETTLING_STEPS + 1):
                site.step([fakes(site, sick=True)] if attacked else [])
            site.lost |= {"GPU-node-b-0"}
            for _ in range(2):
                site.step([fakes(site, sick=True)] if attacked else [])
            started[attacked] = site.started(VICTIM)
    assert started[False] == {"drain gpu:GPU-node-b-0"}
    assert started[True] == started[False]


CODES = {48: "memory", 74: "nvlink", 62: "firmware"}
"""XIDs of one class each."""
BY_CLASS = "".join(
    f"""
[[rules]]
name = "xid_{name}"
summary = "An XID of one class."
severity = "critical"
category = "{category}"
action = "drain"
mode = "act"
alert = "{{where}}: XID {{code}}."
all = [{{ kind = "xid", classes = ["{name}"], least = "critical" }}]
"""
    for name, category in zip(CODES.values(), ("memory", "power", "telemetry"), strict=True)
)


@pytest.mark.parametrize("manager", MANAGERS)
def test_all_that_one_node_says_is_one_cause_to_the_breaker(tmp_path: Path, manager: str) -> None:
    """Faults of all classes on GPUs that it has and that it makes up, one after the other; two causes would trip it."""
    managed, shown = MANAGERS[manager]
    with token_site(tmp_path, managed=managed, shown=shown, rules=RULES + BY_CLASS, root_causes=2) as site:
        site.steps(SETTLING_STEPS)
        for number, code in enumerate(CODES):
            for uuid in (f"GPU-{HOSTILE}-{number}", f"GPU-fake-{number}"):
                now = site.clock.now_ms()
                event = Event(EventKind.XID, uuid, HOSTILE, now, code=code, message="x", source="kernel")
                site.step([fakes(site, sick=True), encode(Batch(events=[event]))])
        wanted = {one.decision.rule for one in site.brain.actions.statuses() if one.decision.subject.host == HOSTILE}
        assert {f"xid_{name}" for name in CODES.values()} <= wanted
        assert site.brain.actions.controls().breaker is None
        site.lost |= {f"GPU-{VICTIM}-0"}
        site.steps(2)
        assert site.brain.actions.controls().breaker is not None
