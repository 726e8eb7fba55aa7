"""Laws of every exporter whose series are read out of a Prometheus: a new one is one more plug-in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.dcgm.exposition import Head, Use
from tocsin.collector.promql.exporter import Exporter
from tocsin.collector.promql.heads import SeriesHeads, labelled
from tocsin.config.promql import PromqlSettings
from tocsin.domain.metrics import spec_of
from tocsin.plugins import Kind, load, plugins

NAMES = list(plugins(Kind.EXPORTER))
CARD = {"uuid": "GPU-1", "gpu_uuid": "GPU-1", "serial_number": "1", "gpu": "0", "gpu_id": "0", "instance": "n:9400"}
"""Labels that name a GPU to every exporter, each by its own."""
DCGM = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"]
WORDS = st.text(max_size=40)


@pytest.fixture(params=NAMES)
def exporter(request: pytest.FixtureRequest) -> Exporter:
    opened: Exporter = load(Kind.EXPORTER, request.param, "promql.exporters")()
    return opened


def read_by(exporter: Exporter) -> list[str]:
    """Metrics of the exporter: all that it names, and some of what begins as its own do."""
    return [*exporter.names, *(name for name in DCGM if name.startswith(exporter.prefixes or ("\0",)))]


def test_it_has_the_name_by_which_settings_know_it_and_metrics_of_its_own(exporter: Exporter) -> None:
    assert exporter.name in NAMES
    metrics = read_by(exporter)
    assert metrics
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in (*metrics, *exporter.prefixes))
    assert all(exporter.reads(name) for name in (*metrics, *exporter.errors))
    assert not exporter.reads("node_load1")


def test_each_of_its_metrics_is_about_the_gpu_that_the_labels_name(exporter: Exporter) -> None:
    entity = exporter.entity(CARD | {"xid": "79"})
    heads = [exporter.head(name, entity) for name in read_by(exporter)]
    assert all(head.gpu is not None and head.gpu.uuid for head in heads)
    rows = [head for head in heads if head.use in (Use.METRIC, Use.XID)]
    assert rows, "it shows something"
    assert all(head.field is not None and spec_of(head.key) is not None for head in rows)
    assert all(head.use in (Use.METRIC, Use.XID, Use.XID_COUNT, Use.UNKNOWN) for head in heads)


def test_without_labels_there_is_no_gpu_and_no_value_of_one(exporter: Exporter) -> None:
    entity = exporter.entity({})
    assert entity.gpu is None
    for name in read_by(exporter):
        head = exporter.head(name, entity)
        assert head.gpu is None
        assert head.use is Use.OTHER_ENTITY


def test_the_same_labels_are_the_same_gpu_in_any_order(exporter: Exporter) -> None:
    turned = dict(reversed(CARD.items()))
    assert exporter.entity(CARD).gpu == exporter.entity(turned).gpu
    other = {label: f"{value}7" if "uuid" in label or "serial" in label else value for label, value in CARD.items()}
    assert exporter.entity(other).gpu != exporter.entity(CARD).gpu


@pytest.mark.parametrize("name", NAMES)
@given(raw=st.dictionaries(st.one_of(st.sampled_from([*CARD, "xid", "err_code", "nvlink", "link"]), WORDS), WORDS))
def test_labels_are_a_strangers_word(name: str, raw: dict[str, str]) -> None:
    exporter: Exporter = load(Kind.EXPORTER, name, "promql.exporters")()
    entity = exporter.entity(raw)
    for metric in (*read_by(exporter)[:12], "node_load1"):
        assert isinstance(exporter.head(metric, entity), Head)


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_name_it_alone_read_its_metrics_and_no_others(name: str) -> None:
    heads = SeriesHeads(PromqlSettings.model_validate({"url": "http://p:9090", "exporters": [name]}))
    (exporter,) = heads.exporters
    card = labelled(CARD)
    for metric in read_by(exporter):
        assert heads.reads(metric)
        assert heads.of(metric, card).use is not Use.FOREIGN
    assert not heads.reads("node_load1")
    assert heads.of("node_load1", card).use is Use.FOREIGN
