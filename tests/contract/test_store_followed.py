"""The user's own shape: collectors push into the time-series database, and the brain reads it there."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Owner, Reading
from tocsin.runtime.brain.assembly import open_brain
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.builders import gpu
from tocsin_testing.servers import victoria_metrics

TRIES = 200
TRAIN = Owner(4711, "python3 train.py", "c0ffee", "llama-0", "research, large", "8d3f", user="a\\b")
OTHER = Owner(4712, "nccl=test", slurm_job="17.0")


@pytest.mark.server
def test_agents_that_push_into_victoriametrics_are_seen_and_judged(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as url:
        settings = Settings.model_validate(
            {
                "store": {"kind": "victoriametrics", "url": url, "path": tmp_path / "store.db"},
                "journal": {"path": tmp_path / "journal.db"},
                "forecast": {"worker": False},
            }
        )
        running = open_brain(settings, SystemClock())
        brain = running.brain
        (follower,) = [thread for thread in running.threads if thread.name == "store"]
        assert brain.memory.latest() == ()
        now = SystemClock().now_ms()
        lost = Event(EventKind.XID, gpu(0).uuid, gpu(0).host, now, 79, "GPU has fallen off the bus", "kernel_log")
        values = {"gpu_temperature_celsius": 60.0}
        batch = Batch(readings=[Reading(gpu(0), now, values, owners=(TRAIN, OTHER))], events=[lost])
        text = encode(batch, owner_labels=True)
        sent = httpx2.post(f"{url}/api/v2/write", params={"precision": "ms"}, content=text)
        assert sent.status_code == 204
        pause = threading.Event()
        for _ in range(TRIES):  # a series that is new to the server is found after about ten seconds
            if list(brain.store.latest(now)) and brain.store.events(now, now + 1):
                break
            pause.wait(0.1)
        follower.once()
        assert [(one.gpu.uuid, one.at_ms) for one in brain.memory.latest()] == [(gpu(0).uuid, now)]
        assert brain.memory.latest()[0].owners == (replace(TRAIN, container=""), OTHER)
        assert [one.owners for one in brain.store.readings(now, now + 1)] == [(replace(TRAIN, container=""), OTHER)]
        brain.accept(batch)
        brain.tick()
        assert {finding.subject.name for finding in brain.active} >= {gpu(0).uuid}
        assert len(brain.memory.events_since(0)) <= 1
        running.stop()
