"""Executors with doubles of the managers that they act on, for the laws; every other one is built as it is."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.executors.aws_asg import AwsAsg
from tocsin.actions.executors.protocol import Executor
from tocsin.actions.executors.registry import Means, build_executor
from tocsin.actions.executors.simulated import Simulated
from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.config.cloud import AwsSettings
from tocsin.config.settings import Settings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import ManualClock
from tocsin.domain.finding import ActionKind
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.pools import POOLS
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0
from tocsin_testing.fake_asg import FakeAsg, group
from tocsin_testing.fake_slurm import FakeSlurm, Job, Node


def slurm() -> Executor:
    """A cluster with a job on node-0, a cloud node that sleeps and one that idles."""
    cluster = FakeSlurm(jobs={7: Job("node-0")})
    cluster.nodes |= {"c1": Node("idle", {"CLOUD", "POWERED_DOWN"}), "c2": Node("idle", {"CLOUD"})}
    settings = SlurmSettings(partitions={"default": "gpu"}, allow_reboot=True)
    return SlurmExecutor(settings, cluster, ManualClock(T0))


def aws_asg() -> Executor:
    """One group with two instances."""
    clock = ManualClock(T0)
    return AwsAsg(AwsSettings(groups={"default": ["spot"]}), FakeAsg(clock, group("spot", desired=2)), clock)


def simulated() -> Executor:
    """A small simulated fleet in which the laws' GPU is called by its number."""
    return Simulated(NamedFleet())


class NamedFleet:
    """Takes every name for its first GPU."""

    def __init__(self) -> None:
        self._fleet = SimulatedFleet(FleetSpec(gpus=8))

    def apply(self, action: ActionKind, gpu: str, parameters: Mapping[str, str]) -> bool:
        name = POOLS[0] if action in (ActionKind.SCALE_OUT, ActionKind.SCALE_IN) else "0"
        return self._fleet.apply(action, name, {}) or action in (ActionKind.SCALE_IN, ActionKind.RESTORE)

    def schedulable(self) -> Mapping[str, bool]:
        return self._fleet.schedulable()

    def gpu_on(self, host: str) -> str:
        return self._fleet.gpu_on(host)


DOUBLED = {"simulated": simulated, "slurm": slurm, "aws_asg": aws_asg}


def with_double(name: str, means: Means, url: str) -> Executor:
    """Executor `name`; one that posts does so to `url`."""
    if name in DOUBLED:
        return DOUBLED[name]()
    told = Settings.model_validate({"scale_webhook": {"url": url, "attempts": 2, "pools": {"default": {}}}})
    return build_executor(name, Means(means.sender, told, means.clock))
