"""The benchmark on node telemetry around incidents, on made-up windows in the same format."""

from __future__ import annotations

import bz2
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE, from_iso, to_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.anomaly.structural import LOST, SILENT, XID
from tocsin.forecaster.evaluation.result import Request, Result
from tocsin.forecaster.evaluation.ticket_clock import LoggedIncident
from tocsin.forecaster.features.examples import NEVER
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.forecaster.lifecycle.gate import node_events
from tocsin_benchmarks.gwdg import protocol as gwdg
from tocsin_benchmarks.gwdg.onset import HORIZON_MS, examples_of, node_splits, onset_sections
from tocsin_benchmarks.gwdg.ticket import UNIONS, choose, judged, nodes_of
from tocsin_benchmarks.gwdg.tidy import read_folder
from tocsin_testing.needs import data

DAY0 = from_iso("2025-03-01")
STEP = 10 * MINUTE
DAYS = 6
HEAD = "timeUtc,node,metric,value,gpu,device,uuid,job,instance,modelName,driverVersion"
GPU_METRICS = ("GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "FB_USED")


def lines(node: str, seed: int, fault_h: float | None = None, days: int = DAYS, start_ms: int = DAY0) -> Iterable[str]:
    """A node of two GPUs; at `fault_h` both show XID 79, one metric goes and the rest stands still for a day."""
    rng = np.random.default_rng(seed)
    still: dict[tuple[int, str], float] = {}
    for at_ms in range(start_ms, start_ms + days * DAY, STEP):
        hours = (at_ms - DAY0) / HOUR
        text = to_iso(at_ms)[:19].replace("T", " ")
        yield f"{text},{node},node_load1,{rng.random():.2f},,,,unix,i,,"
        yield f"{text},{node},ipmi_chassis_power_state,1.0,,,,ipmi,i,,"
        failed = fault_h is not None and fault_h <= hours < fault_h + 24
        for gpu in range(2):
            told = [("XID_ERRORS", 79.0 if failed else 0.0)]
            for name in GPU_METRICS[: 3 if failed else 4]:
                value = round(float(50 + 10 * rng.random()), 1)
                told.append((name, still.setdefault((gpu, name), value) if failed else value))
            for name, value in told:
                yield f"{text},{node},DCGM_FI_DEV_{name},{value},{gpu},nvidia{gpu},{node}-u{gpu},dcgm,i,A100,550"


def window(folder: Path, name: str, made: Iterable[str]) -> None:
    (folder / f"{name}_tidy.csv.bz2").write_bytes(bz2.compress("\n".join([HEAD, *made]).encode() + b"\n", 1))


def log(folder: Path, rows: Iterable[tuple[str, str]]) -> None:
    text = "".join(f"{node},{day},,gpu fell off bus\n" for node, day in rows)
    (folder / "incident_events.csv").write_text(f"node,incidentDate,incidentDate2,category\n{text}", encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nodes")
    window(made, "a", lines("a", 0, fault_h=60.0))
    window(made, "b", lines("b", 1, fault_h=40.0))
    window(made, "c", lines("c", 2))
    log(made, [("a", "05 Mar 2025"), ("b", "2025-03-04"), ("c", "03 Mar 2025")])
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> Result:
    return gwdg.run(Request(folder, draws=20, quick=True, leak=True))


def test_incidents_are_found_with_their_leads(found: Result) -> None:
    ticket = found.sections[2]
    (table,) = [one for one in ticket.tables if one.title == "Incidents"]
    leads = {row[0]: (row[3], row[4]) for row in table.rows}
    assert leads["a"] == ("2025-03-03T12:00:00.000Z", 36.0)
    assert leads["b"] == ("2025-03-02T16:00:00.000Z", 32.0)
    assert leads["c"] == (None, None)
    figures = ticket.models[gwdg.CHOSEN]
    assert figures["found_share"].value == pytest.approx(2 / 3)
    assert figures["found_share"].holds is False
    assert figures["start_precision"].value == 1.0
    assert figures["starts_per_node_day"].value == pytest.approx(2 / (3 * DAYS), rel=0.01)


def test_what_the_service_says_comes_first(found: Result) -> None:
    ticket, event = found.sections[:2]
    assert [one.place for one in found.sections] == ["service", "service", "research", "part", "part"]
    (incidents,) = [one for one in ticket.tables if one.title == "Incidents"]
    starts = {row[0]: row[3] for row in incidents.rows}
    assert starts["a"] >= 36.0
    assert starts["b"] >= 32.0
    said = ticket.models["the running service"]
    assert said["found_share"].bar == 1.0
    assert said["reached_by_always_on"].bar == 0.0
    assert said["all_at_once"].bar == 1.0
    assert event.models["the running service"]["announced"].value == 2.0
    (told,) = [one for one in ticket.tables if one.title == "Notifications"]
    xids = [row for row in told.rows if row[0] == "xid_bus"]
    assert [(row[2], row[3]) for row in xids] == [("yes", 2)]


def test_alerts_that_know_nothing_stand_beside(found: Result) -> None:
    (table,) = [one for one in found.sections[2].tables if "know nothing" in one.title]
    assert {row[0] for row in table.rows} >= {"found", "fresh_24h", "precision", "bar"}
    assert any("circular shifts" in note for note in found.sections[2].notes)


def test_the_onset_clock_and_the_leak_are_reported(found: Result) -> None:
    onset, leak = found.sections[3:]
    assert 0 <= onset.models["hazard"]["roc_auc"].value <= 1
    assert onset.models["hazard"]["roc_auc"].bar is None
    assert onset.population["node_events"] == 2
    assert "leak" in leak.title
    assert "row-random split (leak)" in leak.models


def test_a_test_folder_is_judged_by_what_train_nodes_chose(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    for made, node, seed, days in ((train, "a", 0, 4), (test, "z", 5, 4)):
        made.mkdir()
        window(made, node, lines(node, seed, fault_h=50.0, days=days))
        log(made, [(node, "04 Mar 2025")])
    told, again = (gwdg.run(Request(train, test, draws=5, quick=True)) for _ in range(2))
    assert [one.population["incidents_scored"] for one in (told.sections[0], told.sections[2])] == [1, 1]
    assert told.sections[2].models[gwdg.CHOSEN]["found_share"].value == 1.0
    assert told.sections[3].population["nodes"] == 1
    assert again.sections == told.sections


def test_a_node_without_gpu_metrics_has_no_rows(tmp_path: Path) -> None:
    window(tmp_path, "x", [line for line in lines("x", 3, days=3) if "DCGM" not in line])
    for seed, (node, fault_h) in enumerate({"a": 30.0, "b": 40.0, "c": None}.items()):
        window(tmp_path, node, lines(node, seed, fault_h, days=3))
    log(tmp_path, [("x", "03 Mar 2025")])
    blind, *others = sorted(read_folder(tmp_path).nodes, key=lambda node: node.node != "x")
    assert blind.gpus == ()
    with pytest.raises(NotEnoughData, match="no node"):
        examples_of([blind])
    assert np.array_equal(examples_of([blind, *others]).at_ms, examples_of(others).at_ms)
    (section,) = onset_sections([blind, *others], None, seed=0, draws=5, quick=True, leak=False)
    assert section.population["nodes"] == 3
    (alone,) = onset_sections(others, [blind], seed=0, draws=5, quick=True, leak=False)
    assert "no node" in " ".join(alone.notes)


def test_overlapping_windows_are_joined_and_blanks_are_nothing(tmp_path: Path) -> None:
    made = list(lines("a", 0, days=2))
    window(tmp_path, "first", made[: len(made) * 2 // 3])
    window(tmp_path, "second", made[len(made) // 3 :])
    blank = f"{to_iso(DAY0)[:19].replace('T', ' ')},a,DCGM_FI_DEV_SM_CLOCK,2147483632,0,,,,,,"
    window(tmp_path, "third", [blank, "no time,a,DCGM_FI_DEV_GPU_TEMP,1,0,,,,,,", *made[:10]])
    log(tmp_path, [("a", "02 Mar 2025")])
    told = read_folder(tmp_path)
    (record,) = told.nodes
    assert told.files == 3
    assert record.at_ms.size == 2 * 144
    assert record.gpus == ("a:0", "a:1")
    assert np.isfinite(record.values).all()
    assert "DCGM_FI_DEV_SM_CLOCK" not in record.metrics


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tidy telemetry"):
        read_folder(tmp_path)
    window(tmp_path, "a", list(lines("a", 0, days=1)))
    with pytest.raises(InputError, match="no log of incidents"):
        read_folder(tmp_path)
    log(tmp_path, [("a", "02 Mar 2025"), ("a", "soon")])
    assert "soon" in read_folder(tmp_path).problems[0]
    whole = (tmp_path / "a_tidy.csv.bz2").read_bytes()
    (tmp_path / "a_tidy.csv.bz2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        read_folder(tmp_path)


def test_a_union_is_chosen_by_what_it_does_on_others(folder: Path) -> None:
    told = read_folder(folder)
    nodes = nodes_of(told.nodes)
    assert choose([], told.incidents) == UNIONS[0]
    assert choose(nodes, told.incidents) == UNIONS[0]
    assert nodes[0].causes((XID, LOST), int(nodes[0].alerts((XID,))[0])) == XID
    silent = [LoggedIncident("c", DAY0 + 2 * DAY)]
    assert judged(nodes, {node.record.node: (SILENT,) for node in nodes}, silent).count() == 0


def test_onset_rows_keep_to_the_protocol(folder: Path) -> None:
    made = examples_of(read_folder(folder).nodes[1:])
    faulted = (made.at_ms >= DAY0 + 40 * HOUR) & (made.group == made.groups.index("b"))
    assert faulted.sum() <= 2 * (DAYS * 24 - 40 - 72 + 1)
    assert (made.seen_ms <= made.at_ms).all()
    label, known = made.label(HORIZON_MS)
    assert set(np.asarray(made.groups)[made.group[label]]) == {"b"}
    assert known.sum() > label.sum() > 0
    for split in node_splits(made):
        assert not set(made.group[split.train]) & set(made.group[split.test])
    events = node_events(made)
    for code in np.unique(events):
        own = events == code
        assert np.unique(made.group[own]).size == 1
        assert np.unique(made.event_ms[own]).size == 1
    assert (made.event_ms[made.group == made.groups.index("c")] == NEVER).all()


@pytest.mark.data
def test_the_recorded_windows_show_their_signs() -> None:
    told = read_folder(data("gwdg"), most_files=2)
    nodes = nodes_of(told.nodes)
    unions = {node.record.node: UNIONS[0] for node in nodes}
    scored = judged(nodes, unions, told.incidents)
    assert [round((one.lead_ms or 0) / HOUR) for one in scored.found] == [109, 39]
