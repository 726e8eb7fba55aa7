"""What a series of a server of metrics is about, by its name and labels, whichever way it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tocsin.collector.dcgm.exposition import DCGM_PREFIXES, PROCESS_START, Entity, Head, Use, entity_of, head_about
from tocsin.collector.promql.mapping import ExporterMapping, built_in, read_mapping
from tocsin.config.promql import PromqlSettings
from tocsin.domain.errors import InputError

DCGM = "dcgm_exporter"
MAX_LABEL_CHARS = 1024
_MAX_NAMES = 1_500

Target = tuple[str, str]
"""Job and instance of what was scraped."""


@dataclass(slots=True)
class Labelled:
    """One set of labels, and what was made of it by name: the series of a GPU share theirs, and keep them."""

    labels: Mapping[str, str]
    target: Target
    entities: dict[str, Entity] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)


def labelled(labels: Mapping[str, str]) -> Labelled:
    """`labels` without the name, of which nothing is known yet."""
    return Labelled(labels, (labels.get("job", ""), labels.get("instance", "")))


class SeriesHeads:
    """Heads by name and labels: those of dcgm-exporter, of the exporters that settings name, of the site's own file.

    `more` are mappings besides. Raises InputError for a mapping file that cannot be used.
    """

    def __init__(self, settings: PromqlSettings, more: tuple[str, ...] = ()) -> None:
        self.dcgm = DCGM in settings.exporters
        self.mappings = _mappings(settings, more)
        self._labels = _SiteLabels(settings)

    def of(self, name: str, known: Labelled) -> Head:
        """What the series `name` is about, whose labels are `known`."""
        mapping = self.mappings.get(name)
        exporter = DCGM if mapping is None else mapping.name
        if (entity := known.entities.get(exporter)) is None:
            found = entity_of(known.labels) if mapping is None else mapping.entity(known.labels)
            entity = known.entities[exporter] = self._labels.completed(found)
        if mapping is not None:
            return mapping.head(name, entity)
        ours = name == PROCESS_START or (self.dcgm and name.startswith(DCGM_PREFIXES))
        return head_about(name, entity) if ours else Head(name, Use.FOREIGN)


class _SiteLabels:
    """What labels of the site say of host, pool and rack, over what the exporter says."""

    def __init__(self, settings: PromqlSettings) -> None:
        self._settings = settings
        self._host = [label.lower() for label in settings.host_labels]

    def completed(self, entity: Entity) -> Entity:
        """`entity` with them; without a GPU where nothing names its host."""
        labels, gpu, wanted = entity.labels, entity.gpu, self._settings
        host = labels.first(*self._host) or entity.host
        if gpu is None or not host:
            return entity._replace(gpu=None, host=host)
        own = f"{gpu.host}/gpu"

        def named(uuid: str) -> str:
            return f"{host}/gpu{uuid.removeprefix(own)}" if uuid.startswith(own) else uuid

        kept = {label: labels.first(label.lower()) for label in wanted.gpu_labels}
        gpu = replace(
            gpu,
            uuid=named(gpu.uuid),
            parent=named(gpu.parent),
            host=host,
            pool=(labels.first(wanted.pool_label.lower()) if wanted.pool_label else "") or wanted.pool,
            rack=labels.first(wanted.rack_label.lower()) if wanted.rack_label else "",
            labels={**gpu.labels, **{label: value for label, value in kept.items() if value}},
        )
        return entity._replace(gpu=gpu, host=host)


def _mappings(settings: PromqlSettings, more: tuple[str, ...]) -> dict[str, ExporterMapping]:
    """Mapping by the name of the metric; the site's own file outranks Tocsin's. Raises InputError."""
    chosen = [built_in(name) for name in (*more, *settings.exporters) if name != DCGM]
    if settings.mapping_file is not None:
        chosen.append(read_mapping(settings.mapping_file))
    found = {name: mapping for mapping in chosen for name in mapping.names}
    if len(found) > _MAX_NAMES:
        raise InputError("promql.mapping_file", len(found), "maps too many metrics", f"at most {_MAX_NAMES}")
    return found
