"""The fault trace: what is read, what is refused, and who is in the cluster."""

import json
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER
from tocsin_benchmarks.infinitehbd.data import POPULATION, cluster_of, read_trace

GPU = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}
NIC = {"Level": "Hardware Failure", "Class": "NIC", "Desc": "NIC Lost"}


def _one(node: str, day: float, kind: str, fault: object = GPU) -> dict[str, object]:
    return {"node_id": node, "event_time": day, "event_type": kind, "fault_type": fault}


def _folder(tmp_path: Path, *entries: object) -> Path:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "trace.json").write_text(json.dumps(list(entries)), encoding="utf-8")
    (tmp_path / "fault_statistics.json").write_text('{"GPU": 3}', encoding="utf-8")
    return tmp_path


def test_faults_with_their_ends_and_all_nodes(tmp_path: Path) -> None:
    entries = (
        _one("b", 8.5, "fault_start"),
        _one("a", 1.0, "fault_start", NIC),
        _one("a", 1.5, "fault_end", NIC),
        _one("a", 9.0, "fault_start"),
        _one("c", 0.5, "fault_end"),
    )
    cluster = cluster_of(read_trace(_folder(tmp_path, *entries)))
    assert len(cluster.nodes) == POPULATION
    assert cluster.nodes[:4] == ("a", "b", "c", "unnamed-0")
    assert cluster.node.tolist() == [0, 1, 0]
    assert (cluster.start_ms / DAY).tolist() == [1.0, 8.5, 9.0]
    assert cluster.end_ms.tolist() == [round(1.5 * DAY), NEVER, NEVER]
    assert cluster.is_gpu.tolist() == [False, True, True]
    assert cluster.until_ms == 9 * DAY
    assert cluster.known.all()
    assert cluster.tested.all()


def test_a_fault_without_an_end_ends_with_the_next_start(tmp_path: Path) -> None:
    entries = (_one("a", 1.0, "fault_start", NIC), _one("a", 3.0, "fault_start"), _one("a", 4.0, "fault_end"))
    cluster = cluster_of(read_trace(_folder(tmp_path, *entries)))
    assert (cluster.end_ms / DAY).tolist() == [3.0, 4.0]


def test_a_fault_that_ends_as_it_starts_takes_no_node_out(tmp_path: Path) -> None:
    entries = (_one("a", 1.0, "fault_start"), _one("a", 1.0, "fault_end"), _one("b", 2.0, "fault_start"))
    cluster = cluster_of(read_trace(_folder(tmp_path, *entries)))
    assert (cluster.end_ms[cluster.end_ms != NEVER] / DAY).tolist() == [1.0]
    assert cluster.end_ms[cluster.node == 0].tolist() == [DAY]


def test_a_fault_that_ends_as_the_next_like_it_starts_goes_on(tmp_path: Path) -> None:
    entries = (
        _one("a", 1.0, "fault_start"), _one("a", 2.0, "fault_end"), _one("a", 2.0, "fault_start"),
        _one("a", 5.0, "fault_end"),
    )  # fmt: skip
    cluster = cluster_of(read_trace(_folder(tmp_path, *entries)))
    assert (cluster.start_ms / DAY).tolist() == [1.0, 2.0]
    assert (cluster.end_ms / DAY).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (_one("", 1.0, "fault_start"), "entry 2 node_id"),
        ({**_one("a", 1.0, "fault_start"), "event_time": "noon"}, "not days since the first event"),
        (_one("a", float("nan"), "fault_start"), "not days since the first event"),
        (_one("a", -1.0, "fault_start"), "not days since the first event"),
        (_one("a", 1.0, "fault"), "no such type"),
        (_one("a", 1.0, "fault_start", "GPU"), "has no Class"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tmp_path: Path, entry: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_trace(_folder(tmp_path, _one("a", 0.0, "fault_start"), entry))


def test_a_folder_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "fault_statistics.json").write_text('{"GPU": 3}', encoding="utf-8")
    with pytest.raises(InputError, match="no JSON list of faults"):
        read_trace(tmp_path)
    (tmp_path / "broken.json").write_text("[", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path)


def test_later_days_judge_everyone(tmp_path: Path) -> None:
    train = read_trace(_folder(tmp_path / "a", _one("a", 1.0, "fault_start"), _one("b", 150.0, "fault_start")))
    test = read_trace(_folder(tmp_path / "b", _one("a", 210.0, "fault_end"), _one("c", 260.0, "fault_start")))
    cluster = cluster_of(train, test)
    assert len(cluster.nodes) == POPULATION
    assert cluster.tested.all()
    assert cluster.known.all()
    assert (cluster.end_ms[0] / DAY) == 210.0


def test_other_nodes_of_the_same_days_judge_themselves_and_their_share_of_the_unnamed(tmp_path: Path) -> None:
    train = read_trace(_folder(tmp_path / "a", *(_one(f"a{i}", i, "fault_start") for i in range(100))))
    test = read_trace(_folder(tmp_path / "b", *(_one(f"b{i}", i, "fault_start") for i in range(100))))
    cluster = cluster_of(train, test)
    judged = np.asarray(cluster.nodes)[cluster.tested]
    assert sum(name.startswith("b") for name in judged) == 100
    assert sum(name.startswith("unnamed") for name in judged) == 100
    assert judged.size == 200
    assert not cluster.known[cluster.tested].any()


def test_the_same_lines_in_both_folders_count_once(tmp_path: Path) -> None:
    entries = (_one("a", 1.0, "fault_start"), _one("a", 2.0, "fault_end"))
    trace = read_trace(_folder(tmp_path, *entries))
    assert cluster_of(trace, trace).start_ms.size == 1
