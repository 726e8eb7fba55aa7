"""XIDs on the agent's page: by GPU and number, also of a GPU that is lost."""

from __future__ import annotations

from prometheus_client import generate_latest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.runtime.agent.process import Agent
from tocsin_testing.builders import T0, gpu, reading, xid


class Script:
    """A source that gives one batch after the other."""

    name = "script"

    def __init__(self, *batches: Batch) -> None:
        self._batches = list(batches)

    def gpus(self) -> list[Gpu]:
        return [gpu(0)]

    def read(self, now_ms: int) -> Batch:
        return self._batches.pop(0)

    def close(self) -> None:
        """Nothing."""


def page(*batches: Batch) -> str:
    clock = ManualClock(T0)
    agent = Agent(Settings(), Script(*batches), clock, companions=[])
    for _ in batches:
        agent.read()
        clock.advance(10_000)
    text = generate_latest(agent.registry).decode()
    agent.close()
    return text


def test_an_xid_of_a_lost_gpu_keeps_its_labels() -> None:
    lost = Reading(gpu(0), T0 + 10_000, {}, {"gpu_temperature_celsius": Missing.LOST})
    text = page(Batch([reading(gpu(0), temperature_celsius=50)]), Batch([lost], [xid(79), xid(79), xid(45)]))
    labels = 'gpu_index="0",gpu_uuid="GPU-00000000",host="node-1",pool="default",simulated=""'
    assert f'tocsin_xids_total{{{labels},xid="79"}} 2.0' in text
    assert f'tocsin_xids_total{{{labels},xid="45"}} 1.0' in text
    assert "gpu_temperature_celsius{" not in text


def test_an_xid_of_a_gpu_that_was_never_seen_has_what_the_event_tells() -> None:
    event = Event(EventKind.XID, "GPU-unknown", "node-9", T0, 79, simulated=True)
    text = page(Batch([], [event]))
    labels = 'gpu_index="",gpu_uuid="GPU-unknown",host="node-9",pool="",simulated="true",xid="79"'
    assert f"tocsin_xids_total{{{labels}}} 1.0" in text


def test_other_events_are_no_xids() -> None:
    text = page(Batch([], [Event(EventKind.GPU_LOST, "GPU-1", "node-1", T0)]))
    assert "tocsin_xids_total{" not in text
