"""An exporter of a site: names of its own, in units of its own."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.collector.dcgm.exposition import Entity, Head, LineLabels, Use
from tocsin.collector.dcgm.fields import Field
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Gpu

_FIELDS = {
    "acme_heat_millicelsius": Field(METRICS["gpu_temperature_celsius"], "", False, 0.001),
    "acme_power_kilowatts": Field(METRICS["gpu_power_watts"], "", False, 1000.0),
}


class AcmeNames:
    """Implements `tocsin.collector.promql.exporter.Exporter`."""

    name = "acme_exporter"
    names = tuple(_FIELDS)
    prefixes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    def reads(self, metric: str) -> bool:
        return metric in _FIELDS

    def entity(self, raw: Mapping[str, str]) -> Entity:
        labels = LineLabels(raw)
        uuid, host = labels.first("uuid"), labels.first("instance")
        return Entity(labels, Gpu(f"ACME-{uuid}", host) if uuid else None, None, host)

    def head(self, name: str, entity: Entity) -> Head:
        field = _FIELDS.get(name)
        if field is None or entity.gpu is None:
            return Head(name, Use.FOREIGN if field is None else Use.OTHER_ENTITY)
        return Head(name, Use.METRIC, entity.gpu, field, field.key(), host=entity.host)


def open_exporter() -> AcmeNames:
    return AcmeNames()
