"""Opening the store that the settings name; a store's library is imported only where it is used."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.store.port import Store


def _memory(_settings: StoreSettings) -> Store:
    from tocsin.store.memory import MemoryStore

    return MemoryStore()


def _sqlite(settings: StoreSettings) -> Store:
    from tocsin.store.embedded.store import SqliteStore

    return SqliteStore(settings.path)


def _influxdb(settings: StoreSettings) -> Store:
    from tocsin.store.influx.store import InfluxStore

    return InfluxStore(settings)


def _victoriametrics(settings: StoreSettings) -> Store:
    from tocsin.store.embedded.store import SqliteStore
    from tocsin.store.victoriametrics.store import VictoriaMetricsStore

    return VictoriaMetricsStore(settings, SqliteStore(settings.path))


STORES: dict[StoreKind, Callable[[StoreSettings], Store]] = {
    StoreKind.MEMORY: _memory,
    StoreKind.SQLITE: _sqlite,
    StoreKind.INFLUXDB: _influxdb,
    StoreKind.VICTORIAMETRICS: _victoriametrics,
}
"""Kind to maker; each takes the settings of the store."""


def open_store(settings: StoreSettings) -> Store:
    """The store of `settings`; call `init` on it before the first use."""
    return STORES[settings.kind](settings)
