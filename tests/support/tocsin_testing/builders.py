"""Small makers of domain objects with sensible defaults."""

from __future__ import annotations

from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Missing, Reading

T0 = 1_795_000_000_000
"""An instant in November 2026, on a whole minute plus 20 s."""


def gpu(n: int = 0, *, host: str = "node-1", model: str = "NVIDIA A100-SXM4-80GB", **more: object) -> Gpu:
    """GPU number `n`."""
    fields: dict[str, object] = {"uuid": f"GPU-{n:08d}", "host": host, "index": n, "model": model, **more}
    return Gpu(**fields)  # type: ignore[arg-type]


def reading(
    which: Gpu | None = None, at_ms: int = T0, missing: dict[str, Missing] | None = None, **values: float
) -> Reading:
    """A reading; keyword names are canonical names without ``gpu_``."""
    return Reading(which or gpu(), at_ms, {f"gpu_{k}": float(v) for k, v in values.items()}, missing or {})


def xid(code: int, which: Gpu | None = None, at_ms: int = T0) -> Event:
    """An XID event."""
    which = which or gpu()
    return Event(EventKind.XID, which.uuid, which.host, at_ms, code, f"Xid {code}", "test")
