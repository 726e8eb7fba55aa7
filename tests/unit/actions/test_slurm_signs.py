"""Faults in the comments of Slurm's nodes, and everything of Tocsin's taken back; what others wrote stays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.slurm import comments, signs
from tocsin.actions.slurm.client import Slurm, SlurmProblem, Trouble
from tocsin.actions.slurm.comments import CommentTag
from tocsin.actions.slurm.release import Released, release_all
from tocsin.actions.slurm.signs import NodeComments, ShownFaults
from tocsin.cli.main import cli
from tocsin.config.settings import Settings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.slurm_signs import SlurmSigns, open_slurm_signs, shown_by_host
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import finding, incident, subject_of
from tocsin_testing.builders import T0, gpu
from tocsin_testing.fake_slurm import FakeSlurm, Job, Node

FAULT = ShownFaults(("0123456789abcdef",), "GPU 3 [of 8] is at 91 °C.")
NOTE = "[tocsin: GPU 3 (of 8) is at 91 C. (card 0123456789abcdef)]"
MARK = CommentTag("drain", "fedcba9876543210", T0)
SEEN = {f"node-{n}": True for n in range(4)}


def slurm(cluster: FakeSlurm, **settings: Any) -> Slurm:
    return Slurm(SlurmSettings(snapshot_seconds=0, **settings), cluster, ManualClock(T0))


def test_a_fault_stands_behind_the_words_of_others_until_it_is_over() -> None:
    cluster = FakeSlurm()
    cluster.nodes["node-1"].comment = "rack 7,  row B"
    shown = NodeComments(slurm(cluster))
    assert shown.show({"node-1": FAULT}, SEEN).written == 1
    assert cluster.nodes["node-1"].comment == f"rack 7,  row B {NOTE}"
    moved = replace(FAULT, sentence="GPU 3 [of 8] is at 92 °C.")
    assert shown.show({"node-1": moved}, SEEN).written == 0, "a reading that moves is no news"
    more = ShownFaults((*FAULT.ids, "00"), "GPU 3 fell off the bus.")
    assert shown.show({"node-1": more}, SEEN).written == 1
    assert cluster.nodes["node-1"].comment.endswith("(card 0123456789abcdef and 1 more)]")
    stale = {**SEEN, "node-1": False}
    assert shown.show({}, stale).written == 0, "a host that is not seen proves nothing"
    assert shown.show({}, SEEN).written == 1
    assert cluster.nodes["node-1"].comment == "rack 7,  row B"
    assert {node.comment for name, node in cluster.nodes.items() if name != "node-1"} == {""}


def test_a_restart_writes_nothing_anew_and_unknown_hosts_are_left_alone() -> None:
    cluster = FakeSlurm()
    for _ in range(2):
        NodeComments(slurm(cluster)).show({"node-1": FAULT, "elsewhere": FAULT}, {**SEEN, "elsewhere": True})
    assert len(cluster.log) == 1
    cluster.nodes["login"] = Node(comment=NOTE)
    NodeComments(slurm(cluster)).show({"node-1": FAULT}, SEEN)
    assert cluster.nodes["login"].comment == NOTE, "no host whose GPUs are known"


def test_hosts_have_slurms_names() -> None:
    cluster = FakeSlurm()
    NodeComments(slurm(cluster, host_suffix=".example.org")).show({"node-2.example.org": FAULT}, {})
    assert cluster.nodes["node-2"].comment == NOTE


def test_a_mark_that_was_just_made_is_not_lost() -> None:
    cluster = FakeSlurm()
    client = slurm(
        cluster,
    )
    shown = NodeComments(Slurm(SlurmSettings(snapshot_seconds=60), cluster, ManualClock(T0)))
    shown.show({}, SEEN)
    client.mark_node("node-1", str(MARK))
    shown.show({"node-1": FAULT}, SEEN)
    assert cluster.nodes["node-1"].comment == f"{MARK} {NOTE}", "it was read again before it was written"


def test_a_flood_is_spread_and_a_refusal_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "MOST_WRITES", 3)
    cluster = FakeSlurm()
    shown = NodeComments(slurm(cluster))
    assert shown.show(dict.fromkeys(SEEN, FAULT), SEEN).written == 3
    assert shown.show(dict.fromkeys(SEEN, FAULT), SEEN).written == 1
    cluster.refuses = "Access/permission denied"
    count = shown.show({}, SEEN)
    assert (count.written, count.refused) == (0, 3)
    assert "AdminLevel=Operator" in count.problem
    cluster.down = True
    with pytest.raises(SlurmProblem) as away:
        shown.show({}, SEEN)
    assert away.value.trouble is Trouble.UNREACHABLE


def test_the_active_brain_shows_what_the_last_evaluation_found() -> None:
    cluster, clock, metrics = FakeSlurm(), ManualClock(T0), OwnMetrics()
    found = incident(finding(subject_of(gpu(0, host="node-0")), T0, sentence="node-0 GPU 0: 91 °C."))
    brain = SimpleNamespace(
        settings=Settings(), clock=clock, started_ms=T0, evaluations=1, incidents=[found], metrics=metrics, lease=None,
        memory=SimpleNamespace(latest=lambda: ()),
    )  # fmt: skip
    watch = SlurmSigns(cast(Brain, brain), NodeComments(slurm(cluster)))
    watch.look()
    assert cluster.log == [], "within the boot grace"
    clock.advance(round(brain.settings.actions.boot_grace_seconds * SECOND))
    watch.look()
    assert f"(card {found.id})" in cluster.nodes["node-0"].comment
    name = "tocsin_slurm_comments_total"
    assert metrics.registry.get_sample_value(name, {"outcome": "written"}) == 1
    cluster.down = True
    watch.look()
    assert shown_by_host([found])["node-0"].ids == (found.id,)


@pytest.mark.parametrize("told", [{}, {"show_faults": True, "dry_run": True}])
def test_nothing_is_shown_unasked_or_in_a_dry_run(told: dict[str, bool]) -> None:
    brain = SimpleNamespace(settings=Settings.model_validate({"slurm": told}))
    assert open_slurm_signs(cast(Brain, brain)) is None


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="[]")), st.text())
def test_a_note_comes_and_goes_without_a_trace(words: str, sentence: str) -> None:
    noted = comments.with_note(words, sentence)
    assert comments.without_note(noted) == words
    assert comments.with_note(noted, "other") == comments.with_note(words, "other")
    assert comments.note_of(words) == ""
    marked = comments.put(noted, MARK)
    assert comments.find(marked, "drain") == MARK
    assert comments.without_marks(marked) == " ".join(words.split())


def test_everything_is_taken_back_and_nothing_of_others() -> None:
    cluster = FakeSlurm(jobs={7: Job(state="PENDING", why="JobHeldAdmin", admin=f"keep tocsin/held/{MARK.id}/{T0}")})
    ours = Node(flags={"DRAIN"}, reason=f"tocsin: hot [{MARK.id}]", by="root", comment=f"rack 7 {NOTE} {MARK}")
    cluster.nodes |= {"node-0": ours, "node-1": Node(flags={"DRAIN"}, reason="fan", by="ann", comment=str(MARK))}
    found = list(release_all(slurm(cluster)))
    assert found == [
        Released("node-0", ("drain", "comment")),
        Released("node-1", ("comment",), ("the drain is somebody else's by now",)),
        Released("job 7", ("hold", "comment")),
    ]
    assert (ours.flags, ours.comment) == (set(), f"rack 7 tocsin/drained/{MARK.id}/{T0}")
    assert (cluster.nodes["node-1"].flags, cluster.nodes["node-1"].reason) == ({"DRAIN"}, "fan")
    assert cluster.jobs[7].admin == "keep"
    assert list(release_all(slurm(cluster), forget=True)) == [
        Released("node-0", ("comment",)),
        Released("node-1", ("comment",)),
    ]
    assert ours.comment == "rack 7"
    assert list(release_all(slurm(cluster), forget=True)) == []


def test_a_node_that_refuses_keeps_no_other_from_it() -> None:
    cluster = FakeSlurm({"a": Node(comment=NOTE), "b": Node(comment=NOTE)})
    cluster.refuses = "Access/permission denied"
    assert [one.error != "" for one in release_all(slurm(cluster))] == [True, True]


def test_release_all_asks_what_is_wanted() -> None:
    run = CliRunner().invoke(cli, ["release", "--slurm", "host", "n1"], standalone_mode=False)
    assert "goes with --all alone" in str(run.exception)
