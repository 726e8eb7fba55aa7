"""The committed dashboards: made from the tables, of Grafana's own shape, laid out and linked soundly."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tocsin.domain.entry import EntryKind
from tocsin.domain.metrics import METRICS
from tocsin_grafana.__main__ import contents
from tocsin_grafana.annotations import EXTRAS, TOLD
from tocsin_grafana.parts import RECOVERY, heat, margin
from tocsin_grafana.spec import UNITS
from tocsin_testing.dashboards import (
    BACKENDS,
    FOLDER,
    NAMES,
    ROOT,
    asked,
    base_name,
    labels_of,
    load,
    panels,
    series_in,
)

BOARDS = [(backend, name) for backend in BACKENDS for name in NAMES]
COLUMNS = 24
MOST_LINES = 90
"""Height of a dashboard in Grafana's units of 30 pixels: about three screens."""
MOST_PANELS = 32


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return contents()


def test_what_is_committed_is_what_is_made(made: dict[str, str]) -> None:
    stale = [name for name, text in made.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `make grafana`"


def test_no_file_is_left_over(made: dict[str, str]) -> None:
    there = {
        str(path.relative_to(ROOT)) for path in [*FOLDER.rglob("*.json"), *(ROOT / "grafana/alerts").rglob("*.yaml")]
    }
    assert there <= made.keys()


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_the_published_types_know_every_key(backend: str, name: str) -> None:
    plugins.register_default_plugins()
    document = load(backend, name)
    again = json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
    lost = sorted(_lost(document, again))
    allowed = {f"annotations.list.{key}" for key in EXTRAS} | {
        "annotations.list.target.query",
        "annotations.list.target.refId",
    }
    assert [path for path in lost if re.sub(r"\.\d+", "", path) not in allowed] == []


def _lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of `before` that are not, or are not the same, in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [f"{path}.{key}".lstrip(".") for key in before if key not in after]
        return found + [
            x for key in before if key in after for x in _lost(before[key], after[key], f"{path}.{key}".lstrip("."))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            x for place, pair in enumerate(zip(before, after, strict=True)) for x in _lost(*pair, f"{path}.{place}")
        ]
    return [] if before == after else [path]


def test_a_key_that_no_type_knows_is_noticed() -> None:
    document = load("prometheus", "fleet")
    document["panels"][1]["colour"] = "red"
    again = json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
    assert "panels.1.colour" in _lost(document, again)


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_the_layout_is_sound(backend: str, name: str) -> None:
    placed = [(panel["title"], panel["gridPos"]) for panel in load(backend, name)["panels"]]
    for title, place in placed:
        assert place["x"] >= 0, title
        assert place["x"] + place["w"] <= COLUMNS, title
    for (one, a), (other, b) in combinations(placed, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, f"{one} and {other} overlap"
    assert max(place["y"] + place["h"] for _, place in placed) <= MOST_LINES
    assert len(placed) <= MOST_PANELS + 8


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_lines_of_panels_have_no_holes(backend: str, name: str) -> None:
    """Panels that begin at one height fill the width, but for the last line of a row."""
    document = load(backend, name)
    for panel in document["panels"]:
        place = panel["gridPos"]
        if place["x"] > 0:
            left = [p["gridPos"] for p in document["panels"] if p["gridPos"]["x"] + p["gridPos"]["w"] == place["x"]]
            assert any(each["y"] <= place["y"] < each["y"] + each["h"] for each in left), panel["title"]


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_panels_are_named_and_explained(backend: str, name: str) -> None:
    document = load(backend, name)
    found = panels(document)
    titles = [panel["title"] for panel in found]
    assert len(set(titles)) == len(titles)
    assert all(len(panel["description"]) >= 9 and panel["description"].endswith(".") for panel in found)
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    assert document["description"]
    assert document["title"].startswith("Tocsin / ")


def test_names_of_dashboards_are_unique() -> None:
    uids = [load(backend, name)["uid"] for backend, name in BOARDS]
    assert len(set(uids)) == len(uids)
    assert all(len(uid) <= 40 for uid in uids), "Grafana's longest"


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_no_data_source_of_a_site_is_named(backend: str, name: str) -> None:
    document = load(backend, name)
    found = set(re.findall(r'"uid": "([^"]*)"', json.dumps(document)))
    assert found - {document["uid"]} <= {"${datasource}", "-- Grafana --"}
    (source,) = [v for v in document["templating"]["list"] if v["type"] == "datasource"]
    assert source["query"] == backend


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_links_lead_to_dashboards_that_take_what_they_bring(backend: str, name: str) -> None:
    known = {load(b, n)["uid"]: load(b, n) for b, n in BOARDS}
    links = [
        link for panel in panels(load(backend, name)) for link in panel["fieldConfig"]["defaults"].get("links", [])
    ]
    for link in links:
        uid = link["url"].split("/d/")[1].split("?")[0]
        assert known[uid]["templating"]["list"][0]["query"] == backend
        variables = {variable["name"] for variable in known[uid]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", link["url"])) <= variables


@pytest.mark.parametrize("backend", BACKENDS)
def test_there_is_a_way_from_the_fleet_to_the_gpu(backend: str) -> None:
    def leads_to(name: str) -> set[str]:
        text = json.dumps(load(backend, name))
        return set(re.findall(r"/d/tocsin-(?:prom|flux)-(\w+)", text))

    assert {"node", "gpu"} <= leads_to("fleet")
    assert "gpu" in leads_to("node")
    assert "gpu" in leads_to("predictions")


@pytest.mark.parametrize(("backend", "name"), BOARDS)
def test_variables_are_there_before_they_are_used(backend: str, name: str) -> None:
    document = load(backend, name)
    own = {variable["name"] for variable in document["templating"]["list"]}
    texts = [t.get("expr", t.get("query", "")) for panel in panels(document) for t in panel["targets"]]
    used = {found for text in texts for found in re.findall(r"\$\{?(\w+)", text)}
    assert {each for each in used if not each.startswith("__")} <= own


# ------------------------------------------------------------------ what is asked


def test_every_metric_and_label_of_a_query_is_in_a_table() -> None:
    for query in asked("prometheus"):
        found = list(series_in(query.text))
        assert found, query
        for name, labels in found:
            assert set(labels) <= labels_of(name), f"{query.board}, {query.panel}: {name}{labels}"


def test_every_series_of_a_board_is_bound_to_the_cells_that_are_chosen() -> None:
    marks = [
        mark["expr"] for name in NAMES for mark in load("prometheus", name)["annotations"]["list"] if "expr" in mark
    ]
    for text in [*(query.text for query in asked("prometheus")), *marks]:
        assert all("cell" in labels for _, labels in series_in(text)), text


def test_a_site_of_one_cell_needs_no_label() -> None:
    for name in NAMES:
        (cell,) = (one for one in load("prometheus", name)["templating"]["list"] if one["name"] == "cell")
        assert (cell["allValue"], cell["current"]["value"], cell["includeAll"]) == (".*", "$__all", True)


def test_every_metric_of_an_annotation_is_in_a_table() -> None:
    marks = [mark for mark in load("prometheus", "fleet")["annotations"]["list"] if "expr" in mark]
    assert len(marks) == 3
    for mark in marks:
        for name, labels in series_in(mark["expr"]):
            assert set(labels) <= labels_of(name)
        words = set(re.findall(r"\{\{(\w+)\}\}", mark["titleFormat"] + mark["textFormat"]))
        assert words <= {label for name, _ in series_in(mark["expr"]) for label in labels_of(name)}
    assert set(TOLD) <= set(EntryKind)


def test_legends_name_labels_that_are_there() -> None:
    for name in NAMES:
        for panel in panels(load("prometheus", name)):
            for target in panel["targets"]:
                labels = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
                known = set().union(*(labels_of(metric) for metric, _ in series_in(target["expr"])))
                assert labels <= known, panel["title"]


COUNTS = ("count", "increase", "rate", "changes", "histogram_quantile", "sgn")


def test_units_are_those_of_the_metric_table() -> None:
    """A panel that shows values of the table as they are shows them in the table's unit."""
    checked = 0
    for name in NAMES:
        for panel in panels(load("prometheus", name)):
            texts = [target["expr"] for target in panel["targets"]]
            if panel["type"] == "table" or any(
                word + "(" in text or word + " by" in text for text in texts for word in COUNTS
            ):
                continue
            units = {METRICS[base_name(m)].unit for text in texts for m, _ in series_in(text) if m in METRICS}
            if len(units) == 1:
                (unit,) = units
                assert panel["fieldConfig"]["defaults"]["unit"] == UNITS.get(unit, "short"), panel["title"]
                checked += 1
    assert checked > 25


def test_colours_change_at_the_levels_of_the_rules() -> None:
    """docs/rules.md: above 85 °C, 2 °C or less, and 0."""
    assert [(step.value, step.color) for step in heat()][-1] == (85, "red")
    assert [step.value for step in margin()] == [None, 1, 3], "red at 0 and below, orange up to 2"


def test_the_words_of_the_drivers_verdict_are_those_of_the_table() -> None:
    text = METRICS["gpu_recovery_action"].help
    assert set(re.findall(r"\b(\d)\b", text)) == {str(value) for value in RECOVERY}


# ------------------------------------------------------------------ provisioning


def test_provisioning_names_folders_that_exist_and_no_secret() -> None:
    folder = ROOT / "grafana" / "provisioning"
    providers = yaml.safe_load((folder / "dashboards" / "tocsin.yaml").read_text())["providers"]
    assert [each["options"]["path"].rsplit("/", 1)[1] for each in providers] == list(BACKENDS)
    assert all(each["type"] == "file" for each in providers)
    sources = yaml.safe_load((folder / "datasources" / "tocsin.yaml").read_text())["datasources"]
    assert [each["type"] for each in sources] == list(BACKENDS)
    for source in sources:
        assert "uid" not in source
        assert source["url"].startswith("${TOCSIN_")
        assert all(value.startswith("$__file{") for value in source.get("secureJsonData", {}).values())
    assert sources[1]["jsonData"]["version"] == "Flux"
