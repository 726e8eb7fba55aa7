"""What Slurm prints, as recorded: nodes and jobs in JSON and text, host lists, marks and error texts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import CommandResult, CommandRunner, Trouble, trouble_of
from tocsin.actions.slurm.comments import CommentTag
from tocsin.actions.slurm.nodes import foreign, is_ours
from tocsin.actions.slurm.state import (
    SlurmNode,
    expand,
    gpu_count,
    gpu_indices,
    job_ref,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
    split_state,
)
from tocsin.config.slurm import SlurmSettings

DATA = Path(__file__).parents[2] / "data" / "slurm"


def transcript(name: str) -> list[tuple[str, CommandResult]]:
    """Command and answer of each exchange of a recorded file."""
    found = []
    for piece in re.split(r"^\$ ", (DATA / name).read_text(), flags=re.MULTILINE)[1:]:
        command, _, rest = piece.partition("\n")
        body, _, code = rest.rpartition("--- exit ")
        out, _, err = body.partition("--- stderr\n")
        found.append((command, CommandResult(int(code.split()[0]), out, err)))
    return found


def test_nodes_in_json_with_their_flags_beside_the_state() -> None:
    nodes = {node.name: node for node in nodes_of_json((DATA / "sinfo_all_states.json").read_text())}
    assert [node.base for node in nodes.values()] == ["IDLE", "MIXED", "IDLE", "DOWN", "UNKNOWN"]
    first = nodes["node-1"]
    assert (first.drained, first.schedulable, first.ready) == (True, False, True)
    assert (first.reason, first.reason_user, first.gpus) == ("gpu-monitor: risk 0.93", "root", 4)
    assert first.partitions == ("gpu", "h100")
    assert nodes["node-2"].schedulable
    assert not nodes["node-4"].ready


def test_a_killed_slurmd_is_seen_as_not_responding() -> None:
    nodes = nodes_of_json((DATA / "sinfo_down_not_responding.json").read_text())
    lost = [node for node in nodes if "NOT_RESPONDING" in node.flags]
    assert [(node.name, node.ready, node.schedulable) for node in lost] == [("node-5", False, False)]


def test_text_and_json_say_the_same_of_the_same_nodes() -> None:
    text = nodes_of_text(transcript("scontrol_show_node_all_states.txt")[0][1].out)
    found = nodes_of_json((DATA / "sinfo_all_states.json").read_text())
    assert [(n.name, n.base, n.flags, n.partitions, n.gpus) for n in text] == [
        (n.name, n.base, n.flags, n.partitions, n.gpus) for n in found
    ]


def test_newer_versions_list_the_words_of_a_state_and_wrap_numbers() -> None:
    document = {
        "sinfo": [],
        "nodes": [
            {
                "name": "n1",
                "state": ["IDLE", "DRAIN", "NOT_RESPONDING"],
                "boot_time": {"set": True, "infinite": False, "number": 7},
                "last_busy": {"set": False, "infinite": False, "number": 9},
            }
        ],
    }
    (node,) = nodes_of_json(json.dumps(document))
    assert (node.base, sorted(node.flags), node.boot_s, node.busy_s) == ("IDLE", ["DRAIN", "NOT_RESPONDING"], 7, 0)
    jobs = {"jobs": [{"job_id": 9, "job_state": ["RUNNING"], "array_job_id": {"set": True, "number": 8}}]}
    jobs["jobs"][0]["array_task_id"] = {"set": True, "infinite": False, "number": 0}
    (job,) = jobs_of_json(json.dumps(jobs))
    assert (job.ref, job.active) == ("8_0", True)


def test_jobs_in_json() -> None:
    jobs = {job.number: job for job in jobs_of_json((DATA / "squeue_mixed.json").read_text())}
    assert {number: job.state for number, job in jobs.items()} == {
        1: "RUNNING",
        2: "RUNNING",
        3: "PENDING",
        4: "PENDING",
        5: "RUNNING",
    }
    assert jobs[1].gpus == {"node-1": frozenset({0, 1, 2, 3})}
    assert (jobs[1].requeue, jobs[5].requeue, jobs[1].required_nodes) == (True, False, ("node-1",))
    assert (jobs[3].active, jobs[3].pending, jobs[3].nodes) == (False, True, ())
    assert jobs_of_json((DATA / "squeue_empty.json").read_text()) == []


def test_jobs_in_text() -> None:
    for name, ref, state, requeue in (("running", "1", "RUNNING", True), ("array", "4", "PENDING", True)):
        shown = [answer.out for command, answer in transcript(f"scontrol_show_job_{name}.txt")][-1]
        (job,) = jobs_of_text(" ".join(shown.split()))
        assert (job.ref, job.state, job.requeue, job.batch) == (ref, state, requeue, True)
    running = " ".join(transcript("scontrol_show_job_running.txt")[1][1].out.split())
    (job,) = jobs_of_text(running)
    assert (job.user, job.folder, job.nodes) == ("root", "/var/lib/slurm", ("node-1",))
    assert job.gpus == {"node-1": frozenset({0, 1, 2, 3})}


def test_a_comment_or_reason_with_an_equals_sign_ends_where_it_ends() -> None:
    line = "NodeName=n1 State=IDLE+DRAIN Reason=fan A=1 B=2 [ann@2026-11-21T03:19:07] Comment=own State=X"
    (node,) = nodes_of_text(line)
    assert (node.reason, node.reason_user, node.comment) == ("fan A=1 B=2", "ann", "own State=X")


@pytest.mark.parametrize(
    ("words", "base", "flags"),
    [
        (["idle"], "IDLE", set()),
        (["down*"], "DOWN", {"NOT_RESPONDING"}),
        (["idle~"], "IDLE", {"POWERED_DOWN"}),
        (["drng"], "MIXED", {"DRAIN"}),
        (["drained*"], "IDLE", {"DRAIN", "NOT_RESPONDING"}),
        (["IDLE", "CLOUD", "POWERING_UP"], "IDLE", {"CLOUD", "POWERING_UP"}),
        (["alloc#"], "ALLOCATED", {"POWERING_UP"}),
        ([], "UNKNOWN", set()),
    ],
)
def test_states(words: list[str], base: str, flags: set[str]) -> None:
    assert split_state(words) == (base, frozenset(flags))


def test_host_lists() -> None:
    assert expand("gpu-[1-3,07],login") == ("gpu-1", "gpu-2", "gpu-3", "gpu-07", "login")
    assert expand("a[08-10]-ib") == ("a08-ib", "a09-ib", "a10-ib")
    assert expand("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert expand("") == ()
    for wrong in ("a[1-", "a]", "a[x]", "a[3-1]", "a[1-999999999]", "a[[1]]", "r[1-999]n[1-999]"):
        with pytest.raises(ValueError, match=r"."):
            expand(wrong)


def test_gres() -> None:
    assert gpu_count("gpu:h100:4(S:0-1)") == 4
    assert gpu_count("gpu:2,craynetwork:3,gpu:a100:1") == 3
    assert gpu_count("(null)") == 0
    assert gpu_indices("gpu:h100:3(IDX:0,2-3)") == {0, 2, 3}
    assert gpu_indices("gpu:h100:0(IDX:N/A)") is None
    assert gpu_indices("gpu:4") is None


def test_one_task_of_an_array_is_named_by_array_and_task() -> None:
    assert job_ref(2, 2, 1, 0) == "2_1", "its plain number would mean the whole array"
    assert job_ref(7, 0, None, 0) == "7"
    assert job_ref(8, 0, None, 7) == "7"


def test_marks_live_beside_the_words_of_others() -> None:
    mark = CommentTag("drain", "0" * 16, 5)
    text = comments.put("rack 7, ask Ann", mark)
    assert comments.find(text, "drain") == mark
    assert comments.find(text, "reboot") is None
    newer = comments.put(text, CommentTag("drain", "1" * 16, 9))
    assert comments.find(newer, "drain") == CommentTag("drain", "1" * 16, 9)
    assert comments.find(newer, "drain", "0" * 16) == mark, "two decisions may be about one node"
    assert comments.drop(newer, "drain") == "rack 7, ask Ann"
    for n in range(9):
        text = comments.put(text, CommentTag("drain", f"{n:016x}", 10 + n))
    assert len(text.split()) == 4 + comments.MOST, "they do not grow for ever"


def test_a_reason_is_known_again_and_can_hold_no_quote() -> None:
    made = comments.reason("GPU 3 'hot'; $(reboot) `x` |\n 91 °C", "ab" * 8)
    assert made == "tocsin: GPU 3 hot ; (reboot) x 91 C [abababababababab]"
    assert comments.is_own(made)
    assert not comments.is_own("tocsin is broken")
    assert len(comments.reason("word " * 200, "ab" * 8)) <= comments.MAX_REASON


def test_whose_a_node_is() -> None:
    own = comments.reason("hot", "ab" * 8)
    assert is_ours(SlurmNode("n", "IDLE", frozenset({"DRAIN"}), own))
    assert foreign(SlurmNode("n", "IDLE", frozenset({"DRAIN"}), own)) == ""
    assert "ann: 'fan'" in foreign(SlurmNode("n", "IDLE", frozenset({"DRAIN"}), "fan", "ann"))
    assert foreign(SlurmNode("n", "DOWN", frozenset(), "Not responding", "slurm")) == ""
    assert foreign(SlurmNode("n", "IDLE", frozenset(), "an old reason", "ann")) == ""


@pytest.mark.parametrize(
    ("file", "at", "wanted"),
    [
        ("err_not_permitted.txt", 0, Trouble.NOT_PERMITTED),
        ("err_not_permitted.txt", 1, Trouble.NOT_PERMITTED),
        ("err_not_permitted.txt", 2, Trouble.NOT_PERMITTED),
        ("err_not_permitted.txt", 3, Trouble.NOT_PERMITTED),
        ("err_unknown_node.txt", 0, Trouble.UNKNOWN_NODE),
        ("err_unknown_node.txt", 1, Trouble.UNKNOWN_NODE),
        ("err_unknown_node.txt", 2, None),
        ("err_unknown_node.txt", 3, Trouble.UNKNOWN_NODE),
        ("err_unknown_job.txt", 1, Trouble.UNKNOWN_JOB),
        ("err_unknown_job.txt", 3, None),
        ("err_drain_without_reason.txt", 0, Trouble.NO_REASON),
        ("err_resume_idle.txt", 0, Trouble.WRONG_STATE),
        ("err_controller_down_sinfo.txt", 0, Trouble.UNREACHABLE),
        ("err_controller_down_scontrol.txt", 1, Trouble.UNREACHABLE),
        ("err_no_config.txt", 0, Trouble.NO_CONFIG),
        ("err_requeue.txt", 0, Trouble.NOT_REQUEUEABLE),
        ("err_requeue.txt", 1, Trouble.JOB_PENDING),
    ],
)
def test_error_texts_as_recorded(file: str, at: int, wanted: Trouble | None) -> None:
    command, answer = transcript(file)[at]
    assert trouble_of(answer) is wanted, command


@pytest.mark.parametrize(
    ("reason", "by", "nobodys"),
    [
        ("Not responding", "slurm", True),
        ("Not responding", "root", True),
        ("Not responding", "", True),
        ("Low RealMemory", "slurm", True),
        ("Low RealMemory (reported:128000 < 100.00% of configured:256000)", "slurm", True),
        ("Low socket*core*thread count, Low CPUs", "slurm", True),
        ("gres/gpu count reported lower than configured (0 < 8), Low TmpDisk", "slurm", True),
        ("Node unexpectedly rebooted", "slurm", True),
        ("Not responding to ping, RMA 4711", "ann", False),
        ("Not responding to ping, RMA 4711", "root", False),
        ("Not responding", "ann", False),
        ("Low priority repair", "ann", False),
        ("Low RealMemory", "ann", False),
        ("gres/gpu count wrong, do not touch", "root", False),
        ("slurm_upgrade", "root", False),
    ],
)
def test_only_slurm_s_own_words_are_nobody_s_decision(reason: str, by: str, nobodys: bool) -> None:
    node = SlurmNode("n", "IDLE", frozenset({"DRAIN"}), reason, by)
    assert (foreign(node) == "") is nobodys


@pytest.mark.parametrize(
    ("states", "state", "active"),
    [
        (["CANCELLED", "COMPLETING"], "COMPLETING", True),
        (["RUNNING"], "RUNNING", True),
        (["FAILED", "REQUEUED"], "FAILED", False),
        ("completing", "COMPLETING", True),
        ([], "UNKNOWN", False),
    ],
)
def test_a_job_of_several_states_is_active_where_one_of_them_is(states: object, state: str, active: bool) -> None:
    (job,) = jobs_of_json(json.dumps({"jobs": [{"job_id": 7, "job_state": states}]}))
    assert (job.state, job.active) == (state, active)


@pytest.mark.parametrize("before", [["ssh", "head"], ["sudo", "-u", "slurm", "/usr/bin/ssh", "head"]])
def test_words_for_a_remote_shell_are_quoted_wherever_ssh_stands(
    before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the first word's name stands for it and tells its last argument."""
    fake = tmp_path / before[0]
    fake.write_text('#!/bin/sh\nfor last; do :; done\nprintf %s "$last"\n')
    fake.chmod(0o755)
    settings = SlurmSettings.model_validate({"command": [str(fake), *before[1:]]})
    assert CommandRunner(settings).run(["scontrol", "reason=a b; reboot"], 10).out == "'reason=a b; reboot'"


def test_the_account_of_a_job_in_both_forms() -> None:
    (shown,) = jobs_of_json(json.dumps({"jobs": [{"job_id": 7, "job_state": "RUNNING", "account": "physics"}]}))
    (told,) = jobs_of_text("JobId=7 JobName=a UserId=ann(1000) Account=physics JobState=RUNNING")
    (none,) = jobs_of_text("JobId=7 JobName=a UserId=ann(1000) Account=(null) JobState=RUNNING")
    assert (shown.account, told.account, none.account) == ("physics", "physics", "")
