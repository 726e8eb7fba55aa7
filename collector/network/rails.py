"""Which port serves which GPU: the one that is nearest on the PCI tree, as on servers with a card for each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Way = tuple[str, ...]
"""From the root complex to a PCI device; see `tocsin.collector.sysfs.device_path`."""


def shared(one: Way, other: Way) -> int:
    """How many bridges two devices have in common, the root complex among them."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def nearest(way: Way, numa: int | None, gpus: Mapping[str, tuple[Way, int | None]]) -> list[str]:
    """The UUIDs of the GPUs that are nearest to a device, several where they are equally near, in order of `gpus`.

    Nearest is the one with most bridges in common; without any, those of the same NUMA node; else all.
    """
    common = {uuid: shared(way, other) for uuid, (other, _) in gpus.items()}
    most = max(common.values(), default=0)
    if most:
        return [uuid for uuid, length in common.items() if length == most]
    beside = [uuid for uuid, (_, node) in gpus.items() if numa is not None and node == numa]
    return beside or list(gpus)


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
