"""Domain objects to rows of the embedded store and back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.reading import Reading

Value = str | int | float | bytes | None
Row = Sequence[Value]

GPU_COLUMNS = "uuid, host, position, model, serial, pci_bus_id, parent, mig_profile, pool, rack, labels, simulated"
EVENT_COLUMNS = "id, kind, gpu, host, at_ms, code, message, source, simulated, severity, remedy"


def gpu_row(gpu: Gpu) -> Row:
    """A row of `GPU_COLUMNS`."""
    labels = json.dumps(dict(gpu.labels), sort_keys=True)
    attributes = (gpu.model, gpu.serial, gpu.pci_bus_id, gpu.parent, gpu.mig_profile, gpu.pool, gpu.rack)
    return (gpu.uuid, gpu.host, gpu.index, *attributes, labels, int(gpu.simulated))


def read_gpu(row: Sequence[object]) -> Gpu:
    """Inverse of `gpu_row`."""
    uuid, host, index, model, serial, pci, parent, profile, pool, rack, labels, simulated = row
    return Gpu(
        uuid=str(uuid),
        host=str(host),
        index=None if index is None else int(str(index)),
        model=str(model),
        serial=str(serial),
        pci_bus_id=str(pci),
        parent=str(parent),
        mig_profile=str(profile),
        pool=str(pool),
        rack=str(rack),
        labels=json.loads(str(labels)),
        simulated=bool(simulated),
    )


def read_reading(gpu: Gpu, row: Row, names: tuple[str, ...]) -> Reading:
    """A reading of the first version: ``at_ms``, a byte a column for what is missing, variants as JSON, the columns."""
    at_ms, blob, extra, *columns = row
    values = {name: float(value) for name, value in zip(names, columns, strict=True) if value is not None}
    missing: dict[str, Missing] = {}
    if isinstance(blob, bytes):
        missing = {name: Missing(code) for name, code in zip(names, blob, strict=False) if code and name not in values}
    if extra is not None:
        variants, reasons = json.loads(str(extra))
        values.update(variants)
        missing.update({k: Missing(v) for k, v in reasons.items() if k not in values})
    return Reading(gpu, int(str(at_ms)), values, missing)


def event_row(event: Event) -> Row:
    """A row of `EVENT_COLUMNS`."""
    what = (event.at_ms, event.code, event.message, event.source, int(event.simulated))
    weight = (event.severity.value if event.severity is not None else "", event.remedy)
    return (event.id, event.kind.value, event.gpu, event.host, *what, *weight)


def read_event(row: Sequence[object]) -> Event:
    """Inverse of `event_row`."""
    _, kind, gpu, host, at_ms, code, message, source, simulated, severity, remedy = row
    return Event(
        kind=EventKind(str(kind)),
        gpu=str(gpu),
        host=str(host),
        at_ms=int(str(at_ms)),
        code=int(str(code)),
        message=str(message),
        source=str(source),
        simulated=bool(simulated),
        severity=Severity(str(severity)) if severity else None,
        remedy=str(remedy),
    )
