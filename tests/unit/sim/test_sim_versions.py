"""A simulated fleet has one version of everything: nothing in it differs from its pool."""

from __future__ import annotations

from tocsin.domain.versions import COMPONENTS, Standing, versions_of
from tocsin.rules.version_groups import host_versions, judge_group
from tocsin.sim.inventory import build
from tocsin.sim.spec import FleetSpec


def test_every_gpu_tells_its_versions_and_none_differs() -> None:
    gpus = build(FleetSpec(gpus=2_048)).gpus
    assert all(
        {"driver", "kernel", "vbios", "inforom", "gsp_firmware"} <= versions_of(gpu.labels).keys() for gpu in gpus
    )
    groups = host_versions(gpus)
    judged = [one for group, hosts in groups.items() for one in judge_group(group, hosts, [])]
    assert {one.standing for one in judged} == {Standing.SAME}
    assert {one.component for one in judged} == COMPONENTS.keys() - {"firmware"}


def test_the_demo_has_few_hosts_of_a_kind() -> None:
    groups = host_versions(build(FleetSpec(gpus=64)).gpus)
    judged = [one for group, hosts in groups.items() for one in judge_group(group, hosts, [])]
    assert {one.standing for one in judged} == {Standing.FEW}
