"""The agent's readings by OTLP, beside all else that it does with them."""

from __future__ import annotations

import subprocess
import sys
import threading

import httpx2
import pytest

from tocsin.collector.push import otlp
from tocsin.collector.push.hardware_names import states
from tocsin.collector.push.samples import Tally
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock, SystemClock
from tocsin.domain.errors import InputError
from tocsin.runtime.agent.process import Agent
from tocsin.runtime.agent.sources import open_source
from tocsin_testing.builders import T0

URL = "http://collector:4318/v1/metrics"
WANTED = {"otlp": {"url": URL, "every_seconds": 1}, "simulation": {"gpus": 8}, "agent": {"interval_seconds": 1}}


def agent_of(wanted: dict[str, object], clock: ManualClock | SystemClock, transport: httpx2.MockTransport) -> Agent:
    settings = Settings.model_validate(wanted)
    return Agent(settings, open_source("simulated", settings, clock), clock, transport=transport, companions=[])


def test_a_reading_is_sent() -> None:
    bodies: list[bytes] = []

    def taken(request: httpx2.Request) -> httpx2.Response:
        assert str(request.url) == URL
        bodies.append(request.content)
        return httpx2.Response(200)

    clock = ManualClock(T0)
    agent = agent_of(WANTED, clock, httpx2.MockTransport(taken))
    batch = agent.read()
    assert agent.otlp is not None
    assert agent.otlp.send()
    tally = Tally()
    seen = {series.labels.get("UUID") or series.labels["gpu_uuid"] for series in otlp.read(bodies[0], tally)}
    assert seen == {reading.gpu.uuid for reading in batch.readings}
    assert tally.samples == sum(len(reading.values) + len(states(reading)) for reading in batch.readings)
    agent.close()


def test_the_running_agent_sends_on_a_thread_of_its_own() -> None:
    came = threading.Event()

    def taken(_request: httpx2.Request) -> httpx2.Response:
        came.set()
        return httpx2.Response(200)

    agent = agent_of(WANTED, SystemClock(), httpx2.MockTransport(taken))
    stop = threading.Event()
    running = threading.Thread(target=agent.run, args=(stop,))
    running.start()
    assert came.wait(20)
    stop.set()
    running.join(20)
    agent.close()


def test_without_its_address_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys, tocsin.runtime.agent.process\n"
        "print([name for name in ('google.protobuf', 'opentelemetry') if name in sys.modules])\n"
        "import tocsin.collector.push.otlp_out\n"
        "print([name for name in ('numpy', 'fastapi', 'polars', 'cramjam') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["[]", "[]"], "")


def test_a_library_that_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tocsin.collector.push.otlp_out", None)
    with pytest.raises(InputError, match="otlp"):
        agent_of(WANTED, ManualClock(T0), httpx2.MockTransport(lambda _: httpx2.Response(200)))
