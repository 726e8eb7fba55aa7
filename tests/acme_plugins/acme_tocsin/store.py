"""Store ``acme_memory``: Tocsin's store in memory under the site's own name."""

from __future__ import annotations

from tocsin.config.settings import StoreSettings
from tocsin.store.memory import MemoryStore


class AcmeMemory(MemoryStore):
    """A place for the site's own."""

    name = "acme_memory"


def open_store(settings: StoreSettings) -> AcmeMemory:
    """What the entry point names."""
    return AcmeMemory()
