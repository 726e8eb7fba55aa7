"""Opening the store that the settings name; a store's library is imported only where it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tocsin.config.settings import StoreSettings
from tocsin.plugins import Kind, load
from tocsin.store.port import Store

Opener = Callable[[StoreSettings], Store]
"""What a plug-in of kind `store` is: a class or a function."""


def open_store(settings: StoreSettings) -> Store:
    """The store of `settings`; call `init` on it before the first use."""
    return cast("Opener", load(Kind.STORE, settings.kind, "store.kind"))(settings)


def open_memory(settings: StoreSettings) -> Store:  # noqa: ARG001  # an opener's signature
    """Kind `memory`: kept by this process alone."""
    from tocsin.store.memory import MemoryStore

    return MemoryStore()


def open_sqlite(settings: StoreSettings) -> Store:
    """Kind `sqlite`: the embedded store at `settings.path`."""
    from tocsin.store.embedded.store import SqliteStore

    return SqliteStore(settings.path)


def open_victoriametrics(settings: StoreSettings) -> Store:
    """Kind `victoriametrics`, which keeps words in an embedded store beside it."""
    from tocsin.store.embedded.store import SqliteStore
    from tocsin.store.victoriametrics.store import VictoriaMetricsStore

    return VictoriaMetricsStore(settings, SqliteStore(settings.path))
