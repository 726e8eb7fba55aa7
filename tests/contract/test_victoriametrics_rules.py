"""What docs/store.md says of VictoriaMetrics, asked of a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, SystemClock
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.store.factory import open_store
from tocsin.store.line_protocol.encode import encode
from tocsin.store.port import Store, StoreUnavailable
from tocsin.store.upkeep import Retention
from tocsin_testing import servers
from tocsin_testing.builders import gpu, reading, xid

pytestmark = pytest.mark.server
NOW = SystemClock().now_ms() // 1_000 * 1_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("vm")) as base:
        yield base


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    made = open_store(StoreSettings(kind=StoreKind.VICTORIAMETRICS, url=url, path=tmp_path / "beside.db"))
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


def test_series_have_the_exporters_names(url: str, store: Store) -> None:
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


def test_labels_that_name_no_owner_are_left_out_and_counted(url: str, store: Store) -> None:
    at = NOW - MINUTE
    card = f"gpu_owner,gpu_uuid={gpu(60).uuid},host=n"
    lines = [f"gpu,gpu_uuid={gpu(60).uuid},host=n temperature_celsius=40 {at}", f"{card},pod=p pid=7i {at}"]
    lines += [f"{card},pod=half pid=7.5 {at}", f"gpu_owner,host=n,pod=none pid=7i {at}"]
    for _ in ("sent", "sent again, since the answer was lost"):
        assert write(url, "\n".join(lines)) == 204
    assert [one.owners for one in store.readings(at, at + 1, [gpu(60).uuid])] == [(Owner(7, pod="p"),)]
    assert next(one.owners for one in store.latest(at) if one.gpu.uuid == gpu(60).uuid) == (Owner(7, pod="p"),)
    assert store.maintain(NOW, Retention(MINUTE, MINUTE, MINUTE)).damaged_rows > 0


def test_finer_steps_than_milliseconds_are_cut(url: str) -> None:
    write(url, f"gpu,gpu_uuid=G4 power_watts=1 {NOW * 1_000_000 + 999_999}", "ns")
    assert [row["timestamps"] for row in export(url, '{gpu_uuid="G4"}')] == [[NOW]]


def test_two_values_of_one_instant_are_both_kept(url: str) -> None:
    write(url, f"gpu,gpu_uuid=G5 power_watts=1 {NOW}\n")
    write(url, f"gpu,gpu_uuid=G5 power_watts=2 {NOW}\n")
    (row,) = export(url, '{gpu_uuid="G5"}')
    assert (row["timestamps"], sorted(row["values"])) == ([NOW, NOW], [1, 2])  # type: ignore[call-overload]


def test_an_instant_query_looks_back_five_minutes_and_the_store_further(url: str, store: Store) -> None:
    old = NOW - 20 * MINUTE
    store.write(Batch([reading(gpu(6), old, temperature_celsius=40)]))
    flush(url)
    query = {"query": 'gpu_temperature_celsius{gpu_uuid="GPU-00000006"}', "time": str(NOW / 1_000), "nocache": "1"}
    assert httpx2.get(f"{url}/api/v1/query", params=query).json()["data"]["result"] == []
    assert [r.at_ms for r in store.latest(old) if r.gpu.uuid == "GPU-00000006"] == [old]


def test_gpus_that_agents_write_themselves_are_known_by_uuid_and_host(url: str, store: Store) -> None:
    write(url, f"gpu,gpu_uuid=GPU-direct,host=n7,mig_uuid=MIG-7 power_watts=1 {NOW}")
    (found,) = [g for g in store.gpus() if g.parent == "GPU-direct"]
    assert (found.uuid, found.host, found.model) == ("MIG-7", "n7", "")


def test_a_gpu_that_was_silent_for_long_is_known(url: str, store: Store) -> None:
    write(url, encode(Batch([reading(gpu(9), NOW - 40 * DAY, power_watts=1)])))
    assert "GPU-00000009" in {g.uuid for g in store.gpus()}


def test_no_server_is_unavailable_and_nothing_is_kept_beside(tmp_path: Path) -> None:
    settings = StoreSettings(
        kind=StoreKind.VICTORIAMETRICS, url=f"http://127.0.0.1:{servers.free_port()}", path=tmp_path / "beside.db"
    )
    store = open_store(settings)
    for act in (store.init, lambda: store.write(Batch([reading(power_watts=1)], [xid(79)])), store.gpus):
        with pytest.raises(StoreUnavailable, match="VictoriaMetrics at http"):
            act()
    assert store.events(0, NOW) == []
    store.close()


def kept(url: str, name: str, values: list[float]) -> list[float]:
    """What comes back of `values`, written at one instant each."""
    write(url, "".join(f"gpu,gpu_uuid={name} energy_joules_total={v!r} {NOW + n}\n" for n, v in enumerate(values)))
    (row,) = export(url, f'{{gpu_uuid="{name}"}}')
    return [float(value) for value in row["values"]]  # type: ignore[attr-defined]


def test_whole_numbers_to_2_to_the_53_and_decimals_of_12_digits_are_exact(url: str) -> None:
    whole = [float(2**53 - n * 977) for n in range(200)]
    decimals = [round(123_456.789 + n * 1_234.567, 3) for n in range(200)]
    mixed = [float(2**50 + 1), 0.5, 0.001, 312.456]
    for name, values in (("W", whole), ("D", decimals), ("M", mixed)):
        assert kept(url, f"exact-{name}", values) == values


def test_other_numbers_keep_12_digits(url: str) -> None:
    values = [n / 7 for n in range(1, 100)]
    found = kept(url, "rounded", values)
    assert found == pytest.approx(values, rel=1e-12)
    assert found != values


def test_init_leaves_a_sample_that_belongs_to_no_gpu(url: str, store: Store) -> None:
    ended = time.monotonic() + 10
    while not (found := export(url, "tocsin_ready_value")) and time.monotonic() < ended:
        flush(url)
    assert len(found) == 1
    assert all(g.uuid for g in store.gpus())


def test_readings_of_agents_that_write_themselves_are_read_as_columns(url: str, store: Store) -> None:
    body = encode(Batch([reading(gpu(8), NOW, power_watts=5, temperature_celsius=50)]))
    body += encode(Batch([reading(gpu(8), NOW + 1, {"gpu_power_watts": Missing.LOST})]))
    write(url, body)
    found = store.columns(["gpu_power_watts"], NOW, NOW + 2, ["GPU-00000008"])
    assert found.at_ms.tolist() == [NOW, NOW + 1]
    np.testing.assert_array_equal(found.values, [[5.0], [np.nan]])
    assert [dict(r.missing) for r in store.latest(NOW) if r.gpu.uuid == "GPU-00000008"] == [
        {"gpu_power_watts": Missing.LOST}
    ]


def test_the_newest_readings_of_a_large_fleet_are_read_whatever_a_label_holds(url: str, store: Store) -> None:
    """Labels that a table of plain text cannot hold are read from JSON, the others from the table."""
    at_ms = NOW + MINUTE
    link = variant("gpu_nvlink_transmit_bytes_total", "link", "3")
    denied = {"gpu_fan_speed_ratio": Missing.DENIED}
    sent = [
        Reading(gpu(n), at_ms, {"gpu_temperature_celsius": 40.5, link: n * 1e9}, denied) for n in range(1_000, 1_250)
    ]
    odd = replace(gpu(1_250), host='rack 1, "left"')
    sent.append(reading(odd, at_ms, temperature_celsius=41))
    older = reading(gpu(1_000), at_ms - 1, power_watts=1)
    wanted = {one.gpu.uuid: (one.gpu.host, one.at_ms, one.values, one.missing) for one in sent}
    write(url, encode(Batch([*sent, older])))
    ended = time.monotonic() + 30
    while len(list(store.latest(at_ms - 1))) < len(sent) and time.monotonic() < ended:
        flush(url)
    for _ in range(60):
        # Often: exports with `reduce_mem_usage` have a value of another GPU in one of fifty answers.
        found = store.latest(at_ms - 1)
        assert {one.gpu.uuid: (one.gpu.host, one.at_ms, one.values, one.missing) for one in found} == wanted
