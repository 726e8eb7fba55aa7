"""The uplink before real receivers: a VictoriaMetrics, and the brain's own write endpoint."""

from __future__ import annotations

import random
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from tocsin.collector.spool import Spool
from tocsin.collector.uplink import PushTarget, Uplink
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock, SystemClock
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import servers
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.fake_service import FakeService, serving


@pytest.mark.server
def test_victoriametrics_has_what_was_pushed(tmp_path: Path) -> None:
    clock = SystemClock()
    now = clock.now_ms() // 1000 * 1000
    spool = Spool(tmp_path / "spool.db", 1 << 20, clock)
    batch = Batch(
        readings=[reading(gpu(n), now, temperature_celsius=60.5 + n, power_watts=300) for n in range(3)],
        events=[xid(79, gpu(1), now)],
    )
    spool.put(encode(batch), 3)
    spool.put(encode(Batch(readings=[reading(gpu(0), now - 10_000, temperature_celsius=59)])), 1)
    with servers.victoria_metrics(tmp_path) as url:
        own = OwnMetrics(CollectorRegistry())
        uplink = Uplink(spool, PushTarget(url, "tocsin", "tocsin"), clock, own, jitter=random.Random(1))
        assert uplink.push() == 2
        uplink.close()
        httpx2.get(f"{url}/internal/force_flush")
        text = httpx2.get(f"{url}/api/v1/export", params={"match[]": "gpu_temperature_celsius"}).text
    assert '"values":[59,60.5]' in text
    assert f'"timestamps":[{now - 10_000},{now}]' in text
    assert text.count("\n") == 3
    assert (spool.batches, spool.parked_lines()) == (0, 0)
    spool.close()


def test_a_brain_keeps_the_good_lines_and_the_bad_ones_are_parked(tmp_path: Path) -> None:
    service, clock = FakeService(), ManualClock(T0)
    token = Token(name="node-1", role=Role.AGENT, secret=SecretStr("sixteen characters at least"))
    spool = Spool(tmp_path / "spool.db", 1 << 20, clock)
    good = [f"gpu,gpu_uuid=GPU-{n} power_watts=300 {T0}" for n in range(400)]
    lines = [line if n % 2 else f"nonsense {n}" for n, line in enumerate(good)]
    spool.put("\n".join(lines), 400)
    with serving(service, ApiSettings(tokens=[token])) as url:
        own = OwnMetrics()
        uplink = Uplink(spool, PushTarget(url, "o", "b", token.secret.get_secret_value()), clock, own)
        assert uplink.push() == 1
        assert set(service.lines) == set(good[1::2])
        assert {p.line for p in spool.parked()} == {f"nonsense {n}" for n in range(0, 400, 2)}
        service.store_down = True
        spool.put(good[0], 1)
        assert uplink.push() == 0
        service.store_down = False
        clock.advance(4_999)
        assert uplink.push() == 0, "Retry-After says 5 s"
        clock.advance(1)
        assert uplink.push() == 1
        uplink.close()
    assert good[0] in service.lines
    spool.close()


def test_a_wrong_token_loses_nothing(tmp_path: Path) -> None:
    service, clock = FakeService(), ManualClock(T0)
    token = Token(name="node-1", role=Role.AGENT, secret=SecretStr("sixteen characters at least"))
    spool = Spool(tmp_path / "spool.db", 1 << 20, clock)
    spool.put(f"gpu,gpu_uuid=GPU-1 power_watts=300 {T0}", 1)
    with serving(service, ApiSettings(tokens=[token])) as url:
        uplink = Uplink(spool, PushTarget(url, "o", "b", "an old token"), clock, OwnMetrics())
        assert uplink.push() == 0
        uplink.close()
    assert (spool.batches, spool.parked_lines(), service.lines) == (1, 0, [])
    spool.close()
