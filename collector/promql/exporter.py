"""What an exporter is to whoever reads its series out of a Prometheus, and dcgm-exporter as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from tocsin.collector.dcgm.exposition import DCGM_PREFIXES, Entity, Head, entity_of, head_about
from tocsin.collector.dcgm.fields import SXID_FATAL, SXID_NON_FATAL, XID_COUNT, XID_NAMES
from tocsin.collector.prometheus_history.history import is_read

DCGM = "dcgm_exporter"


class Exporter(Protocol):
    """The names and labels of one exporter, as `promql.exporters` names it.

    A server is asked for `names`, and for whatever begins with one of `prefixes`. Of a metric that two exporters have,
    the one that names it comes before the one that only has its prefix, and the later in the settings before the
    earlier. Labels and values are a stranger's: no method raises for any of them.
    """

    @property
    def name(self) -> str:
        """As it is named in settings."""

    @property
    def names(self) -> Collection[str]:
        """Metrics that are read, each by its whole name."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Beginnings of names that are all its own; empty where `names` are all."""

    @property
    def errors(self) -> Collection[str]:
        """Metrics whose series begin with the first error: they are asked for before the server has them."""

    def reads(self, metric: str) -> bool:
        """Whether anything is made of the metric."""

    def entity(self, raw: Mapping[str, str]) -> Entity:
        """What the labels `raw` are about; without a GPU where they name none."""

    def head(self, name: str, entity: Entity) -> Head:
        """What the series `name` with the labels of `entity` is good for."""


class DcgmNames:
    """dcgm-exporter, whose names and labels in all releases `tocsin.collector.dcgm.exposition` knows."""

    name = DCGM
    names: Collection[str] = ()
    prefixes = DCGM_PREFIXES
    errors = XID_NAMES | SXID_FATAL | SXID_NON_FATAL | {XID_COUNT}

    def reads(self, metric: str) -> bool:
        return is_read(metric)

    def entity(self, raw: Mapping[str, str]) -> Entity:
        return entity_of(raw)

    def head(self, name: str, entity: Entity) -> Head:
        return head_about(name, entity)


def open_dcgm_exporter() -> Exporter:
    """The plug-in `dcgm_exporter`."""
    return DcgmNames()
