"""Every executor over a double of the manager that it acts on, for the laws."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pytest_httpserver import HTTPServer

from tocsin.actions.executors.aws_asg import AwsAsg
from tocsin.actions.executors.node import NodeAgents
from tocsin.actions.executors.registry import Dependencies, build_executor
from tocsin.actions.executors.simulated import Simulated
from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.model.executor import ExecutionResult, Executor
from tocsin.actions.model.view import FleetView
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.node.ports import Asked
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.actions.planning.facts import NodeState
from tocsin.config.cloud import AwsSettings
from tocsin.config.settings import Settings, WebhookSettings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import ActionParameters, Decision
from tocsin.domain.finding import ActionKind
from tocsin.hook.wire import DONE
from tocsin.plugins import OWN_PACKAGE, Kind, plugins
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.jobs import POOLS, SimulatedJob
from tocsin.sim.spec import FleetSpec
from tocsin_testing.action_world import FakeExecutor, World
from tocsin_testing.builders import T0
from tocsin_testing.fake_asg import FakeAsg, group
from tocsin_testing.fake_slurm import FakeSlurm, Job, Node
from tocsin_testing.fake_slurmrestd import rest_runner
from tocsin_testing.kube_devices import DeviceDouble
from tocsin_testing.kube_site import double_site, law_executor
from tocsin_testing.node_world import FakePower
from tocsin_testing.node_world import Node as GpuNode

TURNS = 40
"""Most calls until an execution has to be over, with five seconds between."""


def _nothing() -> None:
    """A manager that does nothing by itself."""


@dataclass
class LawSite:
    """An executor and its manager: `writes` has what was changed there, `turn` lets it do what it does by itself.

    `acts` is False for an executor that never changes anything.
    """

    executor: Executor
    clock: ManualClock
    writes: Callable[[], list[Any]]
    turn: Callable[[], None] = _nothing
    acts: bool = True
    view: FleetView = field(default_factory=lambda: World().view())

    def run(self, decision: Decision) -> ExecutionResult:
        """Pre-check as the loop does it, then calls until it is over."""
        self.executor.check(decision, self.view)
        for _ in range(TURNS):
            result = self.executor.execute(decision)
            if not result.pending:
                return result
            self.clock.advance(5 * SECOND)
            self.turn()
        raise AssertionError(f"{self.executor.name}: {decision.action} is not over: {result.detail}")


def _slurm(folder: Path, url: str, dry_run: bool, *, rest: bool = False) -> Iterator[LawSite]:
    """A cluster with a job on node-0, a cloud node that sleeps and one that idles."""
    clock = ManualClock(T0)
    cluster = FakeSlurm(jobs={7: Job("node-0")})
    cluster.nodes |= {"c1": Node("idle", {"CLOUD", "POWERED_DOWN"}), "c2": Node("idle", {"CLOUD"})}
    settings = SlurmSettings(
        partitions={"default": "gpu"}, allow_reboot=True, dry_run=dry_run, checkpoint_proof="time", snapshot_seconds=0.0
    )

    def turn() -> None:
        cluster.ended()
        for node in cluster.nodes.values():
            if "POWERING_UP" in node.flags or "POWER_UP" in node.flags:
                node.flags -= {"POWERING_UP", "POWER_UP", "POWERED_DOWN", "NOT_RESPONDING"}
            if "REBOOT_REQUESTED" in node.flags or "REBOOT_ISSUED" in node.flags:
                node.flags -= {"REBOOT_REQUESTED", "REBOOT_ISSUED"}
                node.boot = clock.now_ms() // 1000
        for job in cluster.jobs.values():
            if job.state == "RUNNING" and "DRAIN" in cluster.nodes[job.node].flags:
                job.state, job.node = "COMPLETED", ""

    executor = SlurmExecutor(settings, rest_runner(cluster, settings, clock) if rest else cluster, clock)
    yield LawSite(executor, clock, lambda: list(cluster.log), turn)
    executor.close()


def _aws_asg(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    """One group with two instances."""
    clock = ManualClock(T0)
    aws = FakeAsg(clock, group("spot", desired=2))
    settings = AwsSettings(groups={"default": ["spot"]}, dry_run=dry_run)

    def writes() -> list[Any]:
        return [*aws.log, *(sorted(each.tags) for each in aws.known.values() if each.tags)]

    yield LawSite(AwsAsg(settings, aws, clock), clock, writes, aws.launch)


def _node(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    """The agent of node-0, which allows everything and has a hot GPU; its manager shows the node empty."""
    power = FakePower(("GPU-0-0",))
    power.celsius["GPU-0-0"] = 85.0
    agent = GpuNode(folder / "limits", power=power)
    agent.rename("node-0")
    queue = OrderQueue(agent.clock)
    queue.nodes = lambda: {"node-0": NodeState("node-0", schedulable=False)}

    def turn() -> None:
        agent.worker.receive(queue.for_host("node-0"))
        if agent.hooks.asked:
            agent.hooks.given = [Asked(pid, DONE, 1.0, "") for pid in range(agent.hooks.count)]
        agent.seconds(5)
        for report in agent.worker.reports():
            queue.report(report)
            agent.worker.acknowledge(report)

    def writes() -> list[Any]:
        done = [gpus for gpus, dry in agent.machine.resets if not dry]
        return [*(write.detail for write in agent.writes), *agent.hooks.asked, *done]

    yield LawSite(NodeAgents(queue, agent.clock, dry_run=dry_run), agent.clock, writes, turn)


class NamedFleet:
    """Takes every name for its first GPU; `done` has what was done."""

    def __init__(self) -> None:
        self._fleet = SimulatedFleet(FleetSpec(gpus=8))
        self.done: list[ActionKind] = []

    def apply(self, action: ActionKind, gpu: str, parameters: ActionParameters) -> bool:
        self.done.append(action)
        name = POOLS[0] if action in (ActionKind.SCALE_OUT, ActionKind.SCALE_IN) else "0"
        return self._fleet.apply(action, name) or action in (ActionKind.SCALE_IN, ActionKind.RESTORE)

    def schedulable(self) -> Mapping[str, bool]:
        return self._fleet.schedulable()

    def move(self, job: str, hosts: Collection[str]) -> bool:
        return self._fleet.move(job, hosts)

    def closed(self) -> Collection[str]:
        return self._fleet.closed()

    def gpu_on(self, host: str) -> str:
        return self._fleet.gpu_on(host)

    def jobs(self) -> Sequence[SimulatedJob]:
        return self._fleet.jobs()


def _simulated(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    """A small simulated fleet in which the laws' GPU is called by its number."""
    fleet = NamedFleet()
    yield LawSite(Simulated(fleet, dry_run=dry_run), ManualClock(T0), lambda: list(fleet.done))


def _kubernetes(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    """A cluster where everything that the executor supports can be done."""
    clock = ManualClock(T0)
    with double_site(folder, DeviceDouble()) as site:
        executor = law_executor(site, clock, dry_run=dry_run)
        assert site.double is not None
        made = len(site.double.writes())

        def writes() -> list[Any]:
            assert site.double is not None
            mine = site.double.writes()[made:]
            return [(each.verb, each.path) for each in mine if not each.dry_run]

        yield LawSite(executor, clock, writes, site.settle)


def _journal_only(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    means = Dependencies(settings=Settings.model_validate({"actions": {"dry_run": dry_run}}))
    yield LawSite(build_executor("journal_only", means), ManualClock(T0), list, acts=False)


def _fake(folder: Path, url: str, dry_run: bool) -> Iterator[LawSite]:
    made = FakeExecutor()
    yield LawSite(made, ManualClock(T0), list, acts=False)


DOUBLED: dict[str, Callable[[Path, str, bool], Iterator[LawSite]]] = {
    "aws_asg": _aws_asg,
    "fake": _fake,
    "journal_only": _journal_only,
    "kubernetes": _kubernetes,
    "node": _node,
    "simulated": _simulated,
    "slurm": _slurm,
    "slurm by slurmrestd": partial(_slurm, rest=True),
}


@contextmanager
def law_site(name: str, folder: Path, httpserver: HTTPServer, *, dry_run: bool = False) -> Iterator[LawSite]:
    """Executor `name` over its double; one that posts does so to ``/hook`` of `httpserver`."""
    httpserver.expect_request("/hook").respond_with_data(status=202)
    url = httpserver.url_for("/hook")
    if name in DOUBLED:
        yield from DOUBLED[name](folder, url, dry_run)
        return
    clock = ManualClock(T0)
    sender = WebhookSender(WebhookSettings(url=SecretStr(url), attempts=2), clock, rest=lambda _: None)
    told = {
        "scale_webhook": {"url": url, "attempts": 2, "pools": {"default": {}}},
        "actions": {"dry_run": dry_run},
    }
    executor = build_executor(name, Dependencies(sender, Settings.model_validate(told), clock))
    if plugins(Kind.EXECUTOR)[name].package != OWN_PACKAGE:
        yield LawSite(executor, clock, lambda: sorted(getattr(executor, "done", ())))
        sender.close()
        return
    # A receiver knows an event by its id: what it has seen has no second effect.
    yield LawSite(executor, clock, lambda: sorted({request.get_json()["id"] for request, _ in httpserver.log}))
    sender.close()
