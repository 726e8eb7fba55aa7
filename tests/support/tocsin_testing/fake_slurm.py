"""A Slurm cluster that answers commands from memory, as 22.05 does; the real one is in ``slurm_cluster.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.actions.slurm.client import CommandResult, SlurmProblem, Trouble
from tocsin.actions.slurm.state import split_state

_TABLE = {"idle+DRAIN": "drained", "mixed+DRAIN": "draining", "idle+CLOUD+POWERED_DOWN": "idle~"}
"""sinfo's words in its tables."""


@dataclass
class Node:
    """`flags` and `state` are words of ``sinfo --json``."""

    state: str = "idle"
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    by: str = ""
    comment: str = ""
    boot: int = 1_000


@dataclass
class Job:
    """Holds GPU `gpus` of `node` while it runs."""

    node: str = ""
    gpus: str = "0"
    state: str = "RUNNING"
    requeue: bool = True
    batch: bool = True
    comment: str = "tocsin-checkpoint"
    admin: str = ""
    why: str = "None"
    required: str = ""
    excluded: str = ""
    array: int = 0
    task: int | None = None
    folder: str = "/work"
    signals: list[str] = field(default_factory=list)


class FakeSlurm:
    """`log` has every command that changes something. `down` is a controller that is down, `refuses` an error text."""

    def __init__(self, nodes: dict[str, Node] | None = None, jobs: dict[int, Job] | None = None) -> None:
        self.nodes = {f"node-{n}": Node() for n in range(4)} if nodes is None else nodes
        self.jobs = {} if jobs is None else jobs
        self.log: list[str] = []
        self.asked = 0
        self.down = False
        self.json = True
        self.refuses = ""
        self.lost_answer = False
        self.files: dict[str, float] = {}
        self.partition = "gpu"

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        assert seconds > 0
        self.asked += 1
        if command[0] == "stat":
            changed = self.files.get(command[-1])
            return CommandResult(1, "", "No such file") if changed is None else CommandResult(0, f"{changed}\n")
        if list(command[:2]) == ["scontrol", "ping"]:
            return (
                CommandResult(1, "Slurmctld(primary) at c is DOWN")
                if self.down
                else CommandResult(0, "Slurmctld(primary) at c is UP")
            )
        if self.down:
            return CommandResult(1, "", "slurm_load_node: Unable to contact slurm controller (connect failure)")
        if command[0] in ("sinfo", "squeue"):
            return self._listed(command)
        if "show" in command:
            return CommandResult(0, self._text(command))
        self.log.append(" ".join(command))
        if self.refuses:
            return CommandResult(1, "", self.refuses)
        said = self._change(list(command))
        if self.lost_answer:
            self.lost_answer = False
            raise SlurmProblem(Trouble.TIMED_OUT, command, "no end")
        return CommandResult(1, "", said) if said else CommandResult(0, "")

    def ended(self) -> None:
        """What was ending has ended: requeued jobs wait for their begin time."""
        for job in self.jobs.values():
            if job.state == "COMPLETING":
                job.state, job.node, job.why = "PENDING", "", job.why if job.why == "JobHeldAdmin" else "BeginTime"

    def schedule(self) -> None:
        """Jobs that may start do, on the first node that takes work."""
        for job in self.jobs.values():
            if job.state == "PENDING" and job.why == "None":
                free = [n for n, node in self.nodes.items() if not node.flags and n != job.excluded]
                if free:
                    job.node, job.state = free[0], "RUNNING"

    def changes(self, word: str) -> list[str]:
        """Commands of the log with `word` in them."""
        return [line for line in self.log if word in line]

    def _listed(self, command: Sequence[str]) -> CommandResult:
        if "--Node" in command:
            shown = {name: "+".join([node.state, *sorted(node.flags)]) for name, node in self.nodes.items()}
            return CommandResult(0, "".join(f"{name}|{_TABLE.get(s, s)}\n" for name, s in shown.items()))
        if not self.json:
            return CommandResult(1, "", f"{command[0]}: unrecognized option '--json'")
        return CommandResult(
            0, json.dumps({"nodes": self.listed_nodes()} if command[0] == "sinfo" else {"jobs": self.listed_jobs()})
        )

    def listed_nodes(self) -> list[dict[str, Any]]:
        """Nodes as ``sinfo --json`` has them."""
        return [
            {
                "name": name,
                "state": node.state,
                "state_flags": sorted(node.flags),
                "reason": node.reason,
                "reason_set_by_user": node.by,
                "comment": node.comment,
                "partitions": [self.partition],
                "gres": "gpu:h200:2",
                "boot_time": node.boot,
            }
            for name, node in self.nodes.items()
        ]

    def listed_jobs(self) -> list[dict[str, Any]]:
        """Jobs as ``squeue --json`` has them."""
        return [
            {
                "job_id": number,
                "array_job_id": job.array,
                "array_task_id": job.task,
                "job_state": job.state,
                "nodes": job.node,
                "requeue": job.requeue,
                "batch_flag": job.batch,
                "state_reason": job.why,
                "comment": job.comment,
                "admin_comment": job.admin,
                "required_nodes": job.required,
                "current_working_directory": job.folder,
                "user_name": "ann",
                "gres_detail": [f"gpu:h200:1(IDX:{job.gpus})"] if job.node else [],
            }
            for number, job in self.jobs.items()
        ]

    def _text(self, command: Sequence[str]) -> str:
        if "node" in command:
            return "\n".join(
                f"NodeName={name} Gres=gpu:h200:2 State={'+'.join([node.state.upper(), *sorted(node.flags)])} "
                f"Partitions={self.partition} BootTime=None Reason={node.reason} [{node.by}@2026-01-01T00:00:00] "
                f"Comment={node.comment or '(null)'}"
                for name, node in self.nodes.items()
            )
        return "\n".join(
            f"JobId={number} UserId=ann(7) JobState={job.state} Reason={job.why} Dependency=(null) "
            f"Requeue={int(job.requeue)} BatchFlag={int(job.batch)} ReqNodeList=(null) NodeList={job.node} "
            f"Nodes={job.node} CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:{job.gpus}) WorkDir={job.folder} "
            f"AdminComment={job.admin or '(null)'} Comment={job.comment}"
            for number, job in self.jobs.items()
        )

    def _job(self, ref: str) -> Job | None:
        if "_" in ref:
            array, task = (int(part) for part in ref.split("_"))
            return next((j for j in self.jobs.values() if (j.array, j.task) == (array, task)), None)
        return self.jobs.get(int(ref))

    def _change(self, words: list[str]) -> str:
        given = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
        if words[0] == "scancel":
            job = self._job(words[-1])
            if job is not None:
                job.signals.append(words[-2].removeprefix("--signal="))
            return ""
        if words[1] == "update" and "nodename" in given:
            return self._update_node(given)
        if words[1] == "reboot":
            self.nodes[words[-1]].flags |= {"REBOOT_REQUESTED", "DRAIN"}
            self.nodes[words[-1]].reason = given["reason"]
            return ""
        return self._change_job(words, given)

    def _change_job(self, words: list[str], given: dict[str, str]) -> str:
        ref = given.get("jobid", words[-1])
        job = self._job(ref)
        if job is None:
            return f"Invalid job id specified for job {ref}"
        if words[1] == "update":
            job.admin = given.get("admincomment", job.admin)
            job.excluded = given.get("excnodelist", job.excluded)
            if "starttime" in given:
                job.why = "None"
        elif words[1] in ("requeue", "requeuehold"):
            if not job.requeue:
                return f"Requested operation is presently disabled for job {ref}"
            if job.state == "PENDING":
                return f"Job is pending execution for job {ref}"
            job.state = "COMPLETING"
            job.why = "JobHeldAdmin" if words[1] == "requeuehold" else "None"
        elif words[1] == "release":
            job.why = "None"
        return ""

    def _update_node(self, given: dict[str, str]) -> str:
        node = self.nodes.get(given["nodename"])
        if node is None:
            return "slurm_update error: Invalid node name specified"
        state = given.get("state", "")
        if state == "drain":
            node.flags.add("DRAIN")
            node.reason, node.by = given["reason"], "root"
        elif state == "resume":
            if "DRAIN" not in node.flags and split_state([node.state])[0] != "DOWN":
                return "slurm_update error: Invalid node state specified"
            node.flags.discard("DRAIN")
            node.state, node.reason, node.by = "idle", "", ""
        elif state == "power_up":
            node.flags = (node.flags - {"POWERED_DOWN"}) | {"POWERING_UP", "NOT_RESPONDING"}
        elif state == "power_down":
            node.flags.add("POWER_DOWN")
        node.comment = given.get("comment", node.comment)
        return ""
