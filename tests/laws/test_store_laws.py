"""The laws of `tocsin.store.port.Store`, over every store that can be had here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin_testing import servers
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.stores import influx_from_environment

Flush = Callable[[], object]


@pytest.fixture(scope="session")
def victoria_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.victoria_metrics(tmp_path_factory.mktemp("victoria-metrics")) as url:
        yield url


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("victoriametrics", marks=[pytest.mark.server, pytest.mark.xdist_group("victoriametrics")]),
        pytest.param("influxdb", marks=pytest.mark.server),
    ]
)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSettings:
    kind = StoreKind(request.param)
    if kind is StoreKind.VICTORIAMETRICS:
        url = request.getfixturevalue("victoria_url")
        # One server for all laws: what an earlier law wrote must not be there.
        httpx2.post(f"{url}/api/v1/admin/tsdb/delete_series", data={"match[]": '{__name__=~".+"}'}).raise_for_status()
        return StoreSettings(kind=kind, url=url, path=tmp_path / "words.db")
    if kind is StoreKind.INFLUXDB:
        found = influx_from_environment()
        if found is None:
            pytest.skip("TOCSIN_TEST_INFLUX_URL names no InfluxDB 2.x server")
        return found
    return StoreSettings(kind=kind, path=tmp_path / "store.db")


@pytest.fixture
def store(settings: StoreSettings) -> Iterator[Store]:
    opened = open_store(settings)
    opened.init()
    yield _Seen(opened, settings) if settings.kind is StoreKind.VICTORIAMETRICS else opened
    opened.close()


class _Seen:
    """A VictoriaMetrics store whose writes are made visible at once instead of within a second."""

    def __init__(self, store: Store, settings: StoreSettings) -> None:
        self._store = store
        self._flush = f"{settings.url}/internal/force_flush"

    def write(self, batch: Batch) -> None:
        self._store.write(batch)
        httpx2.get(self._flush).raise_for_status()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def times(store: Store, start: int = T0 - 1, end: int = T0 + 1_000_000) -> list[tuple[int, str]]:
    return [(r.at_ms, r.gpu.uuid) for r in store.readings(start, end)]


def test_a_reading_comes_back_as_it_was(store: Store) -> None:
    one = reading(
        temperature_celsius=61.25,
        ecc_corrected_volatile_total=0.0,
        pcie_transmit_bytes_total=float(2**53),
        missing={"gpu_fan_speed_ratio": Missing.UNSUPPORTED, "gpu_memory_temperature_celsius": Missing.TIMED_OUT},
    )
    store.write(Batch(readings=[one]))
    assert list(store.readings(T0, T0 + 1)) == [one]
    assert store.latest(T0) == [one]


def test_variants_and_mig_instances_keep_apart(store: Store) -> None:
    whole = gpu(1)
    slice_ = Gpu("MIG-1", "node-1", parent=whole.uuid, mig_profile="1g.10gb", model="NVIDIA A100-SXM4-80GB")
    values = {'gpu_nvlink_up{link="0"}': 1.0, 'gpu_nvlink_up{link="1"}': 0.0, "gpu_power_watts": 300.0}
    reads = [Reading(whole, T0, values), reading(slice_, memory_used_bytes=5.0)]
    store.write(Batch(readings=reads))
    assert {r.gpu.uuid: dict(r.values) for r in store.readings(T0, T0 + 1)} == {
        whole.uuid: values,
        "MIG-1": {"gpu_memory_used_bytes": 5.0},
    }
    found = store.series(whole.uuid, ['gpu_nvlink_up{link="1"}', "gpu_power_watts"], T0, T0 + 1)
    assert found.values.tolist() == [[0.0, 300.0]]
    assert store.series("MIG-1", ["gpu_memory_used_bytes"], T0, T0 + 1).values.tolist() == [[5.0]]


def test_writing_twice_changes_nothing(store: Store) -> None:
    batch = Batch(readings=[reading(gpu(n), power_watts=100 + n) for n in range(3)], events=[xid(79), xid(48)])
    store.write(batch)
    before = list(store.readings(T0, T0 + 1)), store.events(T0, T0 + 1)
    store.write(batch)
    assert (list(store.readings(T0, T0 + 1)), store.events(T0, T0 + 1)) == before
    assert len(before[0]) == 3
    assert len(before[1]) == 2


def test_two_writes_to_one_instant_merge_fields(store: Store) -> None:
    store.write(Batch(readings=[reading(power_watts=100, missing={"gpu_temperature_celsius": Missing.NOT_DUE})]))
    store.write(Batch(readings=[reading(temperature_celsius=50)]))
    (one,) = store.readings(T0, T0 + 1)
    assert dict(one.values) == {"gpu_power_watts": 100.0, "gpu_temperature_celsius": 50.0}
    assert dict(one.missing) == {}


def test_the_last_value_of_a_field_wins(store: Store, settings: StoreSettings) -> None:
    if settings.kind is StoreKind.VICTORIAMETRICS:
        pytest.skip("VictoriaMetrics itself chooses between two values of one instant, as the store's page says")
    for value in (100, 90, 95):
        store.write(Batch(readings=[reading(power_watts=value)]))
    (one,) = store.readings(T0, T0 + 1)
    assert dict(one.values) == {"gpu_power_watts": 95.0}


def test_order_of_writing_does_not_matter(store: Store) -> None:
    for step in (3, 1, 2, 0):
        store.write(Batch(readings=[reading(gpu(n), T0 + step * 1000, power_watts=step) for n in (1, 0)]))
    expected = [(T0 + step * 1000, f"GPU-{n:08d}") for step in range(4) for n in (0, 1)]
    assert times(store) == expected
    assert [(r.at_ms, r.values["gpu_power_watts"]) for r in store.latest(0)] == [(T0 + 3000, 3.0)] * 2
    assert store.series("GPU-00000000", ["gpu_power_watts"], T0, T0 + 5000).values[:, 0].tolist() == [0, 1, 2, 3]


def test_ranges_have_their_start_and_not_their_end(store: Store) -> None:
    for step in range(3):
        at = T0 + step
        store.write(Batch(readings=[reading(at_ms=at, power_watts=1)], events=[xid(79, at_ms=at)]))
    assert [at for at, _ in times(store, T0, T0 + 2)] == [T0, T0 + 1]
    assert [event.at_ms for event in store.events(T0 + 1, T0 + 2)] == [T0 + 1]
    assert store.series("GPU-00000000", ["gpu_power_watts"], T0 + 1, T0 + 3).at_ms.tolist() == [T0 + 1, T0 + 2]
    assert [r.at_ms for r in store.latest(T0 + 2)] == [T0 + 2]
    assert store.latest(T0 + 3) == []


def test_what_is_absent_is_nan_in_a_series_and_never_zero(store: Store) -> None:
    store.write(Batch(readings=[reading(power_watts=0.0), reading(at_ms=T0 + 1, temperature_celsius=40)]))
    found = store.series("GPU-00000000", ["gpu_power_watts", "gpu_temperature_celsius"], T0, T0 + 2)
    assert found.at_ms.dtype == np.int64
    assert found.values.shape == (2, 2)
    np.testing.assert_array_equal(found.values, [[0.0, np.nan], [np.nan, 40.0]])
    assert store.series("GPU-unknown", ["gpu_power_watts"], T0, T0 + 2).values.shape == (0, 1)
    assert store.series("GPU-00000000", [], T0, T0 + 2).values.shape == (2, 0)


def test_a_series_has_every_instant_of_the_gpu_whatever_was_read_then(store: Store) -> None:
    reads = [
        reading(power_watts=1),
        reading(at_ms=T0 + 1, temperature_celsius=40),
        reading(at_ms=T0 + 2, missing={"gpu_power_watts": Missing.TIMED_OUT}),
        reading(at_ms=T0 + 3, missing={"gpu_temperature_celsius": Missing.LOST}),
        reading(gpu(1), T0 + 4, power_watts=2),
    ]
    store.write(Batch(readings=reads))
    found = store.series("GPU-00000000", ["gpu_power_watts"], T0, T0 + 5)
    assert found.at_ms.tolist() == [T0, T0 + 1, T0 + 2, T0 + 3]
    np.testing.assert_array_equal(found.values, [[1.0], [np.nan], [np.nan], [np.nan]])


def test_a_lost_gpu_has_reasons_alone(store: Store) -> None:
    lost = reading(missing={"gpu_power_watts": Missing.LOST, "gpu_temperature_celsius": Missing.LOST})
    store.write(Batch(readings=[lost]))
    assert list(store.readings(T0, T0 + 1)) == [lost]


def test_readings_of_chosen_gpus(store: Store) -> None:
    store.write(Batch(readings=[reading(gpu(n), power_watts=n) for n in range(4)]))
    chosen = store.readings(T0, T0 + 1, gpus={"GPU-00000001", "GPU-00000003", "GPU-none"})
    assert [r.gpu.uuid for r in chosen] == ["GPU-00000001", "GPU-00000003"]
    assert list(store.readings(T0, T0 + 1, gpus=set())) == []


def test_attributes_of_a_gpu_stay_known(store: Store) -> None:
    rich = gpu(1, pool="training", rack="r1", labels={"a b": "c,d=e"}, serial="165", pci_bus_id="00000000:3b:00.0")
    store.write(Batch(readings=[reading(rich, power_watts=1)]))
    store.write(Batch(readings=[reading(Gpu(rich.uuid, rich.host), T0 + 1, power_watts=2)]))
    (known,) = store.gpus()
    for name in ("uuid", "host", "index", "model", "pool", "rack", "serial", "pci_bus_id", "simulated"):
        assert getattr(known, name) == getattr(rich, name), name
    assert dict(known.labels) == dict(rich.labels)


def finding(last_ms: int = T0, **more: object) -> Finding:
    subject = Subject(SubjectKind.GPU, "GPU-00000001", "node-1", "training", "4242")
    evidence = (Evidence("gpu_power_watts", 'says "so", twice\nand = again', T0, 1.5), Evidence("xid", "79", T0))
    fields = {
        "severity": Severity.WARNING,
        "category": Category.MEMORY,
        "action": ActionKind.MIGRATE,
        "sentence": "Füllstand über 90 %",
        "evidence": evidence,
        **more,
    }
    return Finding(rule="r", subject=subject, started_ms=T0, last_ms=last_ms, **fields)  # type: ignore[arg-type]


def test_findings_are_kept_once_and_the_last_wins(store: Store) -> None:
    store.write(Batch(findings=[finding(value=0.91, threshold=0.9)]))
    store.write(Batch(findings=[finding(T0 + 5)]))
    assert store.findings(T0, T0 + 5) == []
    assert store.findings(T0, T0 + 6) == [finding(T0 + 5)]


def test_predictions_come_back_whole(store: Store) -> None:
    made = [
        Prediction(
            subject=Subject(SubjectKind.GPU, f"GPU-{n:08d}", "node-1"),
            target="time_to_threshold:gpu_temperature_celsius",
            at_ms=T0 + n,
            horizon_ms=3_600_000,
            status=PredictionStatus.CROSSING if n else PredictionStatus.NOT_ENOUGH_DATA,
            model="threshold",
            model_version="1",
            sentence="soon",
            probability=0.75 if n else None,
            eta_ms=T0 + 60_000 if n else None,
            eta_low_ms=T0 + 1 if n else None,
            reason="" if n else "3 of 12 points",
        )
        for n in range(2)
    ]
    store.write(Batch(predictions=made))
    store.write(Batch(predictions=made))
    assert store.predictions(T0, T0 + 2) == made
    assert store.predictions(T0, T0 + 2, gpu="GPU-00000001") == made[1:]


def test_events_of_one_gpu(store: Store) -> None:
    events = [xid(79, gpu(1)), xid(48, gpu(2)), xid(48, gpu(1), T0 + 1)]
    store.write(Batch(events=events))
    assert [(event.at_ms, event.code) for event in store.events(T0, T0 + 2, gpu="GPU-00000001")] == [
        (T0, 79),
        (T0 + 1, 48),
    ]
    assert sorted(store.events(T0, T0 + 2), key=lambda e: e.id) == sorted(events, key=lambda e: e.id)


def test_pruning_removes_the_old_alone(store: Store, settings: StoreSettings) -> None:
    if settings.kind in (StoreKind.INFLUXDB, StoreKind.VICTORIAMETRICS):
        pytest.skip("the server's own retention removes what is old")
    for step in range(3):
        store.write(Batch(readings=[reading(at_ms=T0 + step, power_watts=1)], events=[xid(79, at_ms=T0 + step)]))
    assert store.prune(T0 + 2) == 4
    assert [at for at, _ in times(store)] == [T0 + 2]
    assert [event.at_ms for event in store.events(0, T0 + 9)] == [T0 + 2]
    assert store.prune(T0 + 2) == 0


def test_init_and_close_may_be_repeated(store: Store) -> None:
    store.write(Batch(readings=[reading(power_watts=1)]))
    store.init()
    assert len(store.latest(T0)) == 1
    store.close()
    store.close()


def test_threads_write_and_read_at_once(store: Store) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                store.write(Batch(readings=[reading(gpu(number), T0 + step, power_watts=step)]))
                assert store.latest(T0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(times(store)) == 20


def test_an_empty_batch_is_nothing(store: Store) -> None:
    store.write(Batch())
    assert store.gpus() == []
    assert times(store) == []
