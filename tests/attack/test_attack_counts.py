"""GPUs that one node's agent makes up start no action on another node, and hold none back there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.token_site import HOSTILE, SETTLING_STEPS, VICTIM, TokenSite, token_site

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
