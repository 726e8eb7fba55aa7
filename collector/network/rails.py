"""Which port serves which GPU: the one that is nearest on the PCI tree, as on servers with a card for each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.collector.pci_tree import Way, nearest


def homes(ports: Sequence[tuple[str, Way, int | None]], gpus: Mapping[str, tuple[Way, int | None]]) -> dict[str, str]:
    """Port to the UUID of its GPU. Of GPUs that are equally near each gets its share, in order; none without GPUs."""
    found: dict[str, str] = {}
    load = dict.fromkeys(gpus, 0)
    for name, way, numa in ports:
        if near := nearest(way, numa, gpus):
            uuid = min(near, key=load.__getitem__)
            load[uuid] += 1
            found[name] = uuid
    return found
