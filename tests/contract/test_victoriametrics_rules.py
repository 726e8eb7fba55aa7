"""What docs/store.md says of VictoriaMetrics, asked of a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SystemClock
from tocsin.store.port import StoreUnavailable
from tocsin.store.victoriametrics import VictoriaMetricsStore
from tocsin_testing import servers
from tocsin_testing.builders import gpu, reading, xid

pytestmark = pytest.mark.server
NOW = SystemClock().now_ms() // 1_000 * 1_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("vm")) as base:
        yield base


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[VictoriaMetricsStore]:
    made = VictoriaMetricsStore(StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=url, path=tmp_path / "beside.db"))
    made.init()
    yield made
    made.close()


def flush(url: str) -> None:
    httpx2.get(f"{url}/internal/force_flush").raise_for_status()


def write(url: str, body: str, precision: str = "ms") -> int:
    status = httpx2.post(f"{url}/api/v2/write", params={"precision": precision}, content=body).status_code
    flush(url)
    return status


def export(url: str, selector: str) -> list[dict[str, object]]:
    answer = httpx2.get(f"{url}/api/v1/export", params={"match[]": selector})
    return [httpx2.Response(200, content=line).json() for line in answer.text.splitlines() if line]


def test_series_have_the_exporters_names(url: str, store: VictoriaMetricsStore) -> None:
    store.write(Batch([reading(gpu(1), NOW, temperature_celsius=40)], [xid(79, gpu(1), NOW)]))
    flush(url)
    found = export(url, '{gpu_uuid="GPU-00000001"}')
    names = {str(dict(row["metric"])["__name__"]) for row in found}  # type: ignore[call-overload]
    assert names == {"gpu_temperature_celsius", "gpu_info_index", "gpu_event_code", "gpu_event_simulated"}


def test_a_bad_line_is_skipped_and_still_answered_204(url: str) -> None:
    assert write(url, f"garbage\ngpu,gpu_uuid=G2 power_watts=1 {NOW}\n") == 204
    assert len(export(url, '{gpu_uuid="G2"}')) == 1


def test_text_becomes_zero(url: str) -> None:
    write(url, f'gpu_info,gpu_uuid=G3 model="A100" {NOW}')
    assert [row["values"] for row in export(url, '{gpu_uuid="G3"}')] == [[0]]


def test_finer_steps_than_milliseconds_are_cut(url: str) -> None:
    write(url, f"gpu,gpu_uuid=G4 power_watts=1 {NOW * 1_000_000 + 999_999}", "ns")
    assert [row["timestamps"] for row in export(url, '{gpu_uuid="G4"}')] == [[NOW]]


def test_two_values_of_one_instant_are_both_kept(url: str) -> None:
    write(url, f"gpu,gpu_uuid=G5 power_watts=1 {NOW}\n")
    write(url, f"gpu,gpu_uuid=G5 power_watts=2 {NOW}\n")
    (row,) = export(url, '{gpu_uuid="G5"}')
    assert (row["timestamps"], sorted(row["values"])) == ([NOW, NOW], [1, 2])  # type: ignore[call-overload]


def test_an_instant_query_looks_back_five_minutes_and_the_store_further(url: str, store: VictoriaMetricsStore) -> None:
    old = NOW - 20 * MINUTE
    store.write(Batch([reading(gpu(6), old, temperature_celsius=40)]))
    flush(url)
    query = {"query": 'gpu_temperature_celsius{gpu_uuid="GPU-00000006"}', "time": str(NOW / 1_000), "nocache": "1"}
    assert httpx2.get(f"{url}/api/v1/query", params=query).json()["data"]["result"] == []
    assert [r.at_ms for r in store.latest(old) if r.gpu.uuid == "GPU-00000006"] == [old]


def test_gpus_that_agents_write_themselves_are_known_by_uuid_and_host(url: str, store: VictoriaMetricsStore) -> None:
    write(url, f"gpu,gpu_uuid=GPU-direct,host=n7,mig_uuid=MIG-7 power_watts=1 {NOW}")
    (found,) = [g for g in store.gpus() if g.parent == "GPU-direct"]
    assert (found.uuid, found.host, found.model) == ("MIG-7", "n7", "")


def test_no_server_is_unavailable_and_nothing_is_kept_beside(tmp_path: Path) -> None:
    settings = StoreSettings(
        kind=StoreKind.VICTORIAMETRICS, url=f"http://127.0.0.1:{servers.free_port()}", path=tmp_path / "beside.db"
    )
    store = VictoriaMetricsStore(settings)
    for act in (store.init, lambda: store.write(Batch([reading(power_watts=1)], [xid(79)])), store.gpus):
        with pytest.raises(StoreUnavailable, match="VictoriaMetrics at http"):
            act()
    assert store.events(0, NOW) == []
    store.close()
