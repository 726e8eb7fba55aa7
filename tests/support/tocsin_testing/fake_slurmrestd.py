"""A slurmrestd over `FakeSlurm`, in the words of v0.0.43: what its OpenAPI description says, answered from memory.

States are lists of words, numbers carry whether they are set, and errors come beside what was asked for, also on 200.
No such server was met for real: the one that tests start is of 22.05 (v0.0.38), which reads alone.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import httpx2

from tocsin.actions.slurm.rest import RestRunner
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import Clock
from tocsin_testing.fake_slurm import FakeSlurm

VERSION = "v0.0.43"
_PATHS: dict[str, tuple[str, ...]] = {
    "ping/": ("get",),
    "nodes/": ("get", "post"),
    "node/{node_name}": ("get", "post", "delete"),
    "jobs/": ("get", "delete"),
    "job/{job_id}": ("get", "post", "delete"),
    "partitions/": ("get",),
    "reservations/": ("get",),
}
_STATES = {"DRAIN": "drain", "RESUME": "resume", "POWER_UP": "power_up", "POWER_DOWN": "power_down"}


class FakeRestd:
    """Use `transport`; `asked` has method and path of each request, `headers` those of the last one."""

    def __init__(self, cluster: FakeSlurm, version: str = VERSION, requeues: bool = True) -> None:
        self.cluster = cluster
        self.version = version
        self.asked: list[str] = []
        self.headers: httpx2.Headers = httpx2.Headers()
        self.answer: httpx2.Response | None = None
        """In place of what it would say."""
        self.requeues = requeues
        self.transport = httpx2.MockTransport(self._handle)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        self.headers = request.headers
        if self.answer is not None:
            return self.answer
        if request.url.path == "/openapi/v3":
            more = {"job/{job_id}/requeue": ("get",)} if self.requeues else {}
            paths = {f"/slurm/{self.version}/{path}": dict.fromkeys(to) for path, to in (_PATHS | more).items()}
            return httpx2.Response(200, json={"paths": {"/slurm/v0.0.42/ping/": {"get": None}, **paths}})
        start = f"/slurm/{self.version}/"
        if not request.url.path.startswith(start):
            return httpx2.Response(404, text="Unable find requested URL. Please view /openapi/v3 for API reference.")
        return self._answer(request, request.url.path.removeprefix(start))

    def _answer(self, request: httpx2.Request, path: str) -> httpx2.Response:
        if path == "ping/":
            up = not self.cluster.run(["scontrol", "ping"], 1.0).code
            return self._say({"pings": [{"hostname": "c", "pinged": "UP" if up else "DOWN", "mode": "primary"}]})
        if self.cluster.down:
            return self._fail("Unable to contact slurm controller (connect failure)", 1800, 500)
        if request.method == "GET" and path in ("nodes/", "jobs/"):
            return self._list(path)
        kind, name, *rest = (unquote(part) for part in path.split("/"))
        if kind == "node" and request.method == "GET":
            return self._list("nodes/", name)
        body = json.loads(request.content) if request.content else {}
        if kind == "node":
            return self._did(["scontrol", "update", f"nodename={name}", *_node_words(body)])
        if rest == ["requeue"]:
            return self._did(["scontrol", "requeue", name])
        if request.method == "DELETE":
            query = dict(request.url.params)
            flag = {"BATCH_JOB": ["--batch"], "FULL_JOB": ["--full"]}.get(query.get("flags", ""), [])
            return self._did(["scancel", *flag, f"--signal={query['signal']}", name])
        return self._job(name, body)

    def _job(self, name: str, body: dict[str, Any]) -> httpx2.Response:
        if "hold" in body:
            return self._did(["scontrol", "hold" if body["hold"] else "release", name])
        words = [f"admincomment={body['admin_comment']}"] if "admin_comment" in body else []
        words += ["starttime=now"] if body.get("begin_time", {}).get("set") else []
        words += [f"excnodelist={','.join(body['excluded_nodes'])}"] if "excluded_nodes" in body else []
        return self._did(["scontrol", "update", f"jobid={name}", *words])

    def _did(self, command: list[str]) -> httpx2.Response:
        said = self.cluster.run(command, 1.0)
        # With 200 on purpose: errors count whatever the status.
        return self._fail(said.err, 2000, 200) if said.code else self._say({})

    def _list(self, path: str, only: str = "") -> httpx2.Response:
        self.cluster.asked += 1
        if path == "jobs/":
            return self._say({"jobs": [_job(job) for job in self.cluster.listed_jobs()]})
        nodes = [_node(node) for node in self.cluster.listed_nodes() if only in ("", node["name"])]
        return (
            self._say({"nodes": nodes}) if nodes or not only else self._fail("Invalid node name specified", 2018, 500)
        )

    def _say(self, said: dict[str, Any], status: int = 200) -> httpx2.Response:
        meta = {"plugin": {"type": "openapi/slurmctld", "data_parser": f"data_parser/{self.version}"}}
        return httpx2.Response(status, json={**said, "meta": meta, "errors": said.get("errors", []), "warnings": []})

    def _fail(self, error: str, number: int, status: int) -> httpx2.Response:
        one = {"description": "It was refused", "error_number": number, "error": error, "source": "slurmctld"}
        return self._say({"errors": [one]}, status)


def _node_words(body: dict[str, Any]) -> list[str]:
    words = [f"state={_STATES[word]}" for word in body.get("state", [])]
    return words + [f"{key}={body[key]}" for key in ("reason", "comment") if key in body]


def _node(node: dict[str, Any]) -> dict[str, Any]:
    state = [node["state"].upper(), *node["state_flags"]]
    return {**node, "state": state, "state_flags": [], "boot_time": _set(node["boot_time"])}


def _job(job: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: _set(job[key]) for key in ("array_job_id", "array_task_id")}
    return {**job, **numbers, "job_state": [job["job_state"]]}


def _set(number: int | None) -> dict[str, Any]:
    return {"set": number is not None, "infinite": False, "number": number or 0}


def rest_runner(cluster: FakeSlurm, settings: SlurmSettings, clock: Clock) -> RestRunner:
    """The way to `cluster` by such a server, and by command for what it does not serve."""
    told = settings.model_copy(update={"rest_url": "http://localhost:6820"})
    return RestRunner(told, clock, cluster, FakeRestd(cluster).transport)
