"""What a series of a server of metrics is about, by its name and labels, whichever way it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tocsin.collector.dcgm.exposition import PROCESS_START, Entity, Head, Use, entity_of, head_about
from tocsin.collector.promql.exporter import Exporter
from tocsin.collector.promql.mapping import built_in, read_mapping
from tocsin.config.promql import PromqlSettings
from tocsin.domain.errors import InputError
from tocsin.plugins import Kind, load

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
    return Labelled(labels, target_of(labels))


def target_of(labels: Mapping[str, str]) -> Target:
    """What the series with `labels` was scraped from."""
    return labels.get("job", ""), labels.get("instance", "")


class SeriesHeads:
    """Heads by name and labels: those of the exporters that settings name, and of the site's own file.

    `more` are tables besides. Raises InputError for an exporter that does not load, or a mapping file that cannot be
    used.
    """

    def __init__(self, settings: PromqlSettings, more: tuple[str, ...] = ()) -> None:
        self.exporters = _exporters(settings, more)
        self._by_name = {name: exporter for exporter in self.exporters for name in exporter.names}
        self._by_prefix = [exporter for exporter in reversed(self.exporters) if exporter.prefixes]
        if len(self._by_name) > _MAX_NAMES:
            most = f"at most {_MAX_NAMES}"
            raise InputError("promql.mapping_file", len(self._by_name), "maps too many metrics", most)
        self._labels = _SiteLabels(settings)
        self._of_prefix: dict[str, Exporter | None] = {}

    def reads(self, metric: str) -> bool:
        """Whether any of the exporters makes something of the metric."""
        return metric in self._by_name or any(one.reads(metric) for one in self._by_prefix)

    def of(self, name: str, known: Labelled) -> Head:
        """What the series `name` is about, whose labels are `known`."""
        exporter = self._exporter(name)
        whose = "" if exporter is None else exporter.name
        if (entity := known.entities.get(whose)) is None:
            found = entity_of(known.labels) if exporter is None else exporter.entity(known.labels)
            entity = known.entities[whose] = self._labels.completed(found)
        if exporter is not None:
            return exporter.head(name, entity)
        # Of any exporter: that it was started anew.
        return head_about(name, entity) if name == PROCESS_START else Head(name, Use.FOREIGN)

    def _exporter(self, name: str) -> Exporter | None:
        if (named := self._by_name.get(name)) is not None:
            return named
        if name not in self._of_prefix:
            if len(self._of_prefix) > _MAX_NAMES:
                self._of_prefix.clear()
            self._of_prefix[name] = next((one for one in self._by_prefix if name.startswith(one.prefixes)), None)
        return self._of_prefix[name]


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


def _exporters(settings: PromqlSettings, more: tuple[str, ...]) -> list[Exporter]:
    """Those of the settings; the site's own file, the last, outranks Tocsin's. Raises InputError, Unavailable."""
    chosen: list[Exporter] = [built_in(name) for name in more]
    chosen += [load(Kind.EXPORTER, name, "promql.exporters")() for name in settings.exporters]
    if settings.mapping_file is not None:
        chosen.append(read_mapping(settings.mapping_file))
    return chosen
