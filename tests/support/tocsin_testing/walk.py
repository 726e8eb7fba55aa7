"""Two walks through the product: how many files pass a reading on from NVML to the screen, and an XID on to a cordon.

``make walk``, or ``PYTHONPATH=tests/support python -m tocsin_testing.walk [--tree PATH] [--files] [--check] [--json]``

Each walk starts the real commands of a tree: an agent over the mock NVML library and a ``journalctl`` of our own, a
brain with its embedded store, and ``tocsin top --once``; the cluster is the double of the tests. All run under
`sys.setprofile`.

- A call hands the thing on where what it returns or yields holds it: the reading is known by a value that no other
  metric has, the XID by its number and the name of the process in its line.
- The walk is the stacks of these calls, the product's frames alone, in the order of time, over all threads and
  processes. That of the XID ends where the API server gets the patch; what runs beside the thread that sends it, from
  the start of that thread on, is no part of it.
- A hop is a change of file on these stacks, from a caller to what it calls. One that is made again counts once.

A call that is only shown the thing, such as a guard that answers yes or no, hands nothing on. ``--handed`` counts those
too: a walk that is shorter only because a call now returns something else is not shorter by that wider count.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin_testing.kube_double import TOCSIN, Asked, KubeDouble
from tocsin_testing.kube_recorded import exchanges
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet
from tocsin_testing.servers import free_port

SUPPORT = Path(__file__).resolve().parents[1]
BASE = Path(__file__).with_name("walk_base.json")
"""What the script counted on an earlier commit, and how much of it a walk may have now."""
SECONDS = 120.0
"""Longest time that anything is waited for."""
SELDOM, NEVER_TWICE = 30.0, 3600.0
"""Seconds between two readings, or two evaluations, where the walk has to be the only thing that happens: of an XID,
which waits for an evaluation, and of a reading, which needs none."""
NODE = "node-1"
FORECAST = 'tocsin_forecast_seconds_count{model="all"} 1.0'
WATTS = 123.457
READING = {"texts": [r"\b123\.457\b", r"\b123\s?W\b"], "numbers": [WATTS, round(WATTS * 1000)]}
XID = 48
PROCESS = "walk_process"
LINE = f"NVRM: Xid (PCI:0000:1a:00): {XID}, pid=4711, name={PROCESS}, An uncorrectable double bit error (DBE)"
FAULT = {"texts": [PROCESS, rf"XID {XID}\b"], "fields": {"code": XID, "kind": "xid"}}

SETTINGS = """
agent = {{ host = "{node}", pool = "default", listen = "127.0.0.1:0", interval_seconds = {seldom}, push_url = "{url}", \
spool = "{folder}/spool.db", kernel_log = "journald", hook_socket = "", release_file = "", host_load = false, \
network = false, host_errors = false, attribution = false }}
api = {{ listen = "127.0.0.1:{port}" }}
dashboard = {{ api_url = "{url}" }}
store = {{ path = "{folder}/store.db" }}
journal = {{ path = "{folder}/journal.db" }}
rules = {{ path = "{folder}/rules.toml", evaluate_seconds = {seldom} }}
forecast = {{ worker = false, every_seconds = 100000.0, models = "{folder}/models" }}
cloud = {{ notices = "off" }}
kubernetes = {{ kubeconfig = "{folder}/kubeconfig" }}

[actions]
mode = "act"
earn_waived = ["*"]
executors = ["kubernetes"]
managed_pools = ["default"]
confirmations = 1
boot_grace_seconds = 0.0
limits = {{ max_concurrent_ratio = 1.0, max_per_host = 8, min_available_ratio = 0.0 }}
"""
RULES = """
defaults = false
[[rules]]
name = "walk"
severity = "critical"
category = "hardware"
action = "cordon"
mode = "act"
alert = "{where}: XID {code}: {help}."
all = [{ kind = "xid", classes = ["memory"], least = "critical" }]
"""


@dataclass(frozen=True)
class Hop:
    """A change of file: who calls whom, where it was first seen."""

    caller: str
    file: str
    function: str


@dataclass
class Way:
    """One walk as it was traced."""

    hops: list[Hop] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """In the order in which they came."""

    def add(self, stack: Sequence[tuple[str, str]]) -> None:
        """Take a stack into account, outermost frame first."""
        for number, (file, function) in enumerate(stack):
            if file not in self.files:
                self.files.append(file)
            caller = stack[number - 1][0] if number else file
            if caller != file and not any((hop.caller, hop.file) == (caller, file) for hop in self.hops):
                self.hops.append(Hop(caller, file, function))

    @property
    def figures(self) -> dict[str, int]:
        return {"hops": len(self.hops), "files": len(self.files)}


class World:
    """A node with two GPUs and a kernel log, a cluster that has the node, and the commands of one tree."""

    def __init__(
        self, tree: Path, folder: Path, markers: Mapping[str, Any], double: KubeDouble, events: str, seldom: float
    ) -> None:
        self._tree, self._folder, self._markers, self.double = tree, folder, markers, double
        self._events = events
        self._outs: list[Path] = []
        self.url = f"http://127.0.0.1:{free_port()}"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")},
            **self._node(),
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(SUPPORT)]),
            "TOCSIN_CONFIG": str(folder / "tocsin.toml"),
        }
        port = self.url.rpartition(":")[2]
        text = SETTINGS.format(node=NODE, url=self.url, port=port, folder=folder, seldom=seldom)
        (folder / "tocsin.toml").write_text(text)
        (folder / "rules.toml").write_text(RULES)
        (folder / "kubeconfig").write_text(json.dumps(_cluster(double)))

    def _node(self) -> dict[str, str]:
        fleet = MockFleet(self._folder, [h100(0), h100(1)])
        fleet.gpus[0].set("nvmlDeviceGetPowerUsage", to=round(WATTS * 1000))
        fleet.gpus[0].field(185, round(WATTS * 1000), "uint")
        fleet.apply()
        (self._folder / "kernel.log").touch()
        journalctl = self._folder / "bin" / "journalctl"
        journalctl.parent.mkdir()
        journalctl.write_text(f"#!/bin/sh\nexec tail -n +1 -f {self._folder}/kernel.log\n")
        journalctl.chmod(0o755)
        return fleet.environment() | {"PATH": f"{journalctl.parent}{os.pathsep}{os.environ['PATH']}"}

    def _command(self, words: Sequence[str], markers: Mapping[str, Any]) -> tuple[list[str], Path]:
        out = self._folder / f"{len(self._outs)}-{words[0]}.jsonl"
        self._outs.append(out)
        begin = [sys.executable, "-W", "ignore", "-m", "tocsin_testing.walk_trace"]
        return [*begin, str(self._tree), str(out), json.dumps(markers), self._events, "--", *words], out

    def run(self, *words: str, traced: bool = True) -> str:
        """Run a command to its end; what it printed."""
        command, _ = self._command(words, self._markers if traced else {})
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @contextmanager
    def running(self, *words: str) -> Iterator[Path]:
        """Run a command beside the block; its log."""
        command, out = self._command(words, self._markers)
        log = out.with_suffix(".log")
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=file, stderr=file)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(SECONDS)

    @contextmanager
    def serving(self) -> Iterator[Path]:
        """A brain, and an agent whose first reading it has; the brain's log."""
        with self.running("brain") as brain:
            until(lambda: FORECAST in self.ask("/metrics"), "the first forecast is made, of no GPU yet", brain)
            with self.running("agent", "--source", "nvml") as agent:
                until(lambda: NODE in self.ask("/v1/gpus"), "the reading is served", agent)
                yield brain

    def ask(self, path: str) -> str:
        """What the brain answers; nothing where it does not answer yet."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def log_xid(self) -> None:
        """Let the kernel log the XID."""
        row = {"MESSAGE": LINE, "__REALTIME_TIMESTAMP": str(round(time.time() * 1e6)), "__CURSOR": "1"}
        with (self._folder / "kernel.log").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def noted(self) -> list[dict[str, Any]]:
        """What all commands noted, in the order of time."""
        rows = [json.loads(line) for out in self._outs if out.exists() for line in out.read_text().splitlines()]
        return sorted(rows, key=lambda row: float(row["at"]))


def _cluster(double: KubeDouble) -> dict[str, object]:
    """Enter the node; a kubeconfig with the rights of the shipped manifest."""
    body = json.loads(json.dumps(exchanges()["node_create"]["request"]["body"]))
    body["metadata"]["name"] = NODE
    double.state.create("/api/v1/nodes", body)
    status = exchanges()["node_status_patch"]["request"]["body"]["status"]
    double.state.find("/api/v1/nodes", NODE)["status"] = status
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "walk",
        "contexts": [{"name": "walk", "context": {"cluster": "walk", "user": "walk"}}],
        "clusters": [{"name": "walk", "cluster": {"server": double.start()}}],
        "users": [{"name": "walk", "user": {"token": TOCSIN}}],
    }


@contextmanager
def world(tree: Path, markers: Mapping[str, Any], events: str, seldom: float) -> Iterator[World]:
    """A world in a folder of its own, for the time of the block."""
    double = KubeDouble()
    with tempfile.TemporaryDirectory(prefix="tocsin-walk-") as folder:
        try:
            yield World(tree, Path(folder), markers, double, events, seldom)
        finally:
            double.stop()


def until(true: Callable[[], bool], what: str, log: Path) -> None:
    """Wait for `true`; the end of `log` goes with the error."""
    deadline, never = time.monotonic() + SECONDS, threading.Event()
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {SECONDS:.0f} s: {what}\n{log.read_text()[-4000:]}")
        never.wait(0.1)


def walk_reading(tree: Path, events: str) -> Way:
    """From NVML to a row of ``tocsin top``."""
    with world(tree, READING, events, NEVER_TWICE) as here:
        with here.serving():
            shown = here.run("top", "--once")
        if "123 W" not in shown:
            raise RuntimeError(f"the reading is not on the screen:\n{shown}")
        return _way([row for row in here.noted() if "stack" in row])


def walk_xid(tree: Path, events: str) -> Way:
    """From a line of the kernel log to the patch that cordons the node."""
    patched: list[float] = []

    def before(asked: Asked) -> None:
        if (asked.method, asked.plural) == ("PATCH", "nodes") and "unschedulable" in json.dumps(asked.body):
            patched.append(time.time())

    with world(tree, FAULT, events, SELDOM) as here:
        here.double.before = before
        with here.serving() as brain:
            here.run("resume", traced=False)
            begun = time.time()
            here.log_xid()
            until(lambda: bool(patched), "the node is cordoned", brain)
        return _way(before_patch([row for row in here.noted() if begun <= row["at"] <= patched[0]]))


def before_patch(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of `rows` that lead to the patch: the last that was noted before it is of the thread that sends it."""
    stacks = [row for row in rows if "stack" in row]
    last = _sender(rows, stacks)
    started = next((row["at"] for row in rows if row.get("starts") == last), None)
    if started is None:
        started = next(row["at"] for row in stacks if row["thread"] == last)
    return [row for row in stacks if row["thread"] == last or row["at"] <= started]


def _sender(rows: Sequence[dict[str, Any]], stacks: Sequence[dict[str, Any]]) -> str:
    """The thread that came upon the Kubernetes executor last."""
    return str(next(row["thread"] for row in reversed(stacks) if any("kube" in file for file, _ in row["stack"])))


def _way(rows: Sequence[Mapping[str, Any]]) -> Way:
    way = Way()
    for row in rows:
        way.add([(file, function) for file, function in row["stack"]])
    return way


WALKS: dict[str, Callable[[Path, str], Way]] = {"reading": walk_reading, "xid": walk_xid}
TITLES = {"reading": "a reading from NVML to the screen", "xid": "an XID line to a cordon"}


def _line(name: str, way: Way, base: Mapping[str, Any], handed: bool) -> tuple[str, bool]:
    """What is said of a walk, and whether it is short enough."""
    now, then = way.figures, base["walks"][name]
    then = then | (then["handed"] if handed else {})
    ratio = now["hops"] / then["hops"]
    said = f"{now['hops']} hops through {now['files']} files; {base['commit']}: {then['hops']} through {then['files']}"
    return f"{TITLES[name]}: {said}; ratio {ratio:.2f}, at most {then['most']:.2f}", ratio <= then["most"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=SUPPORT.parents[1], help="the checkout to walk through")
    parser.add_argument("--files", action="store_true", help="list the hops in their order")
    parser.add_argument("--check", action="store_true", help="end with 1 where a walk is longer than it may be")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--handed", action="store_true", help="count the calls too that are only shown the thing")
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="which; default: both")
    return parser.parse_args()


def main() -> int:
    """See the module."""
    wanted, base, found, fits = _arguments(), json.loads(BASE.read_text()), {}, True
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the double logs every request
    for name in wanted.walks or WALKS:
        way = WALKS[name](wanted.tree.resolve(), "call,return" if wanted.handed else "return")
        found[name] = way.figures | {"hop_list": [[hop.caller, hop.file, hop.function] for hop in way.hops]}
        said, short = _line(name, way, base, wanted.handed)
        fits = fits and short
        if wanted.json:
            continue
        print(said)
        for hop in way.hops if wanted.files else ():
            print(f"    {hop.caller} -> {hop.file} {hop.function}")
    if wanted.json:
        print(json.dumps(found, indent=1))
    return 0 if fits or not wanted.check else 1


if __name__ == "__main__":
    sys.exit(main())
