"""An InfluxDB of release 1 answers a ping and can hold nothing for us: the store says so before anything is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import influxdb_client
import pytest

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.store.influx.store import InfluxStore
from tocsin.store.port import StoreMisconfigured
from tocsin_testing import servers
from tocsin_testing.builders import reading, xid

pytestmark = pytest.mark.server
REFUSED = r"store\.url = 'http://127[^']*': InfluxDB at .* answers 404: .*; name an InfluxDB 2\.x \(release 1 answers"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.influxdb1(tmp_path_factory.mktemp("influxdb")) as base:
        yield base


@pytest.fixture
def store(url: str) -> Iterator[InfluxStore]:
    made = InfluxStore(StoreSettings(kind=StoreKind.INFLUXDB, url=url))
    yield made
    made.close()


def test_a_ping_proves_nothing(url: str) -> None:
    with influxdb_client.InfluxDBClient(url, token="t", org="o") as client:
        assert client.ping()


def test_init_refuses_it_and_says_what_to_do(store: InfluxStore) -> None:
    with pytest.raises(StoreMisconfigured, match=REFUSED):
        store.init()


@pytest.mark.parametrize("batch", [Batch([reading(power_watts=1)]), Batch(events=[xid(79)])], ids=["readings", "words"])
def test_a_write_is_refused_as_a_wrong_setting_and_not_as_bad_lines(store: InfluxStore, batch: Batch) -> None:
    with pytest.raises(StoreMisconfigured, match=REFUSED):
        store.write(batch)


def test_a_query_is_refused_and_not_empty(store: InfluxStore) -> None:
    with pytest.raises(StoreMisconfigured, match=REFUSED):
        store.gpus()


def test_a_victoriametrics_under_the_wrong_kind_is_named(tmp_path: Path) -> None:
    with servers.victoria_metrics(tmp_path) as base:
        store = InfluxStore(StoreSettings(kind=StoreKind.INFLUXDB, url=base))
        with pytest.raises(StoreMisconfigured, match=r"for VictoriaMetrics set store\.kind"):
            store.init()
        store.close()
