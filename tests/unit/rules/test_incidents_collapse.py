"""Bursts become one incident under their root cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Evidence, Finding, Incident, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.rules.incidents import cause_rank, collapse
from tocsin.topology.labels import RAIL_LABEL, claims_of_node
from tocsin.topology.topology import Topology, topology_of
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.rule_runs import Run, instant


def found(*events: Event, values: dict[Gpu, dict[str, float]] | None = None) -> list[Finding]:
    """What the shipped rules find in `events`, all of them given at their last instant."""
    run = Run()
    if values:
        run.step(0, values)
    last = max((event.at_ms for event in events), default=T0)
    run.step((last - T0) / MINUTE, events=events)
    return run.last.active


def at(code: int, which: Gpu, seconds: float = 0) -> Event:
    return xid(code, which, T0 + round(seconds * SECOND))


def fabric(*gpus: Gpu, name: str = "u.1") -> Topology:
    """All of `gpus` in one NVLink domain."""
    return topology_of([replace(one, labels={NVLINK_DOMAIN: name}) for one in gpus])


def codes(incident: Incident) -> list[float | None]:
    return sorted(member.value for member in incident.members if member.value is not None)


def test_149_beside_63_times_145_is_one_incident() -> None:
    fleet = [gpu(n, host=f"node-{n // 4}") for n in range(64)]
    events = [at(149 if n == 37 else 145, which, n % 5) for n, which in enumerate(fleet)]
    (incident,) = collapse(found(*events), events, fabric(*fleet))
    assert len(incident.members) == incident.subjects == 64
    assert (incident.root.value, incident.root.subject.name) == (149, fleet[37].uuid)
    assert "64 findings on 16 hosts within 4 s, also XID 145" in incident.sentence
    assert "node-9 GPU-00000037: XID 149" in incident.sentence
    assert incident.sentence.endswith("Look at this GPU: its NVLinks: cable, connector or port.")
    assert incident.place == Place(PlaceKind.GPU, fleet[37].uuid)
    apart = collapse(found(*events), events)
    assert len(apart) == 16, "where no domain is known, a host is its own"


def test_a_fabric_over_two_racks_fails_as_one() -> None:
    fleet = [gpu(n, host=f"node-{n // 4}", rack=f"r{n // 8}") for n in range(16)]
    readings = {which: {"power_watts": 100.0} for which in fleet}
    events = [at(145, which, 1) for which in fleet]
    (incident,) = collapse(found(*events, values=readings), events, fabric(*fleet))
    assert (incident.subjects, incident.place) == (16, Place(PlaceKind.NVLINK_DOMAIN, "u.1"))


def test_links_that_fail_in_many_racks_are_no_chain_without_end() -> None:
    fleet = [gpu(n, host=f"node-{n}", rack=f"r{n}") for n in range(20)]
    events = [at(149, which, 25 * n) for n, which in enumerate(fleet)]
    assert len(collapse(found(*events), events)) == 20
    assert len(collapse(found(*events), events, fabric(*fleet))) == 20, "each failed end is a cause of its own"
    echoes = [at(145, which, 25 * n) for n, which in enumerate(fleet)]
    ends = [one.opened_ms for one in collapse(found(*echoes), echoes, fabric(*fleet))]
    assert len(ends) > 1, "a burst has an end"


def test_two_failed_links_of_one_domain_keep_their_echoes() -> None:
    fleet = [gpu(n, host=f"node-{n // 4}") for n in range(16)]
    first = [at(149, fleet[0])] + [at(145, one, 1) for one in fleet[1:8]]
    second = [at(149, fleet[8], 40)] + [at(145, one, 41) for one in fleet[9:]]
    one, two = collapse(found(*first, *second), [*first, *second], fabric(*fleet))
    assert (one.root.subject.name, one.subjects) == (fleet[0].uuid, 8)
    assert (two.root.subject.name, two.subjects) == (fleet[8].uuid, 8)


def test_an_echo_before_the_cause_was_heard_of_is_no_second_start() -> None:
    """The second end echoed the first before it failed itself: its failure begins when it was reported."""
    fleet = [gpu(n, host=f"node-{n // 4}") for n in range(8)]
    events = [at(149, fleet[0]), *(at(145, one, 2) for one in fleet[1:5]), at(149, fleet[1], 40)]
    one, two = collapse(found(*events), events, fabric(*fleet))
    assert (one.subjects, two.subjects) == (4, 1)
    assert two.root.subject.name == fleet[1].uuid


def test_unlike_faults_of_one_host_stay_apart() -> None:
    events = [at(79, gpu(0)), at(48, gpu(3), 8), at(63, gpu(3), 9)]
    assert sorted(incident.subjects for incident in collapse(found(*events), events)) == [1, 1]


def hot(*gpus: Gpu, after: int = 0) -> list[Finding]:
    """The GPUs above their limit, one a minute later than the other."""
    run = Run()
    for minute in range(12):
        run.step(
            after + minute, {one: {"temperature_celsius": 91.0 if minute > n else 60.0} for n, one in enumerate(gpus)}
        )
    return [finding for finding in run.last.active if finding.rule == "temperature_high"]


def test_hot_gpus_of_one_host_are_its_air_flow() -> None:
    fleet = [gpu(n) for n in range(8)]
    (incident,) = collapse(hot(*fleet), (), topology_of(fleet))
    assert incident.place == Place(PlaceKind.HOST, "node-1")
    assert incident.sentence.startswith("Host node-1: 8 GPUs show the same. First: ")
    assert incident.sentence.endswith("Look at host node-1: its air flow: fans, filters, inlet temperature.")
    assert incident.sentence_zh.startswith("主机 node-1：8 块 GPU 现象相同。最先：node-1 GPU 0：自 ")
    assert incident.sentence_zh.endswith("请检查主机 node-1：风道：风扇、滤网、进风温度。")
    mute = [replace(one, sentence_zh="") for one in incident.members]
    assert collapse(mute, (), topology_of(fleet))[0].sentence_zh == "", "a rule of the site speaks English alone"


def test_a_few_hot_gpus_are_each_their_own() -> None:
    fleet = [gpu(n) for n in range(8)]
    incidents = collapse(hot(*fleet[:3]), (), topology_of(fleet))
    assert [one.place for one in incidents] == [Place(PlaceKind.GPU, one.uuid) for one in fleet[:3]]


def test_a_dark_rack_is_its_power_or_switch() -> None:
    fleet = [gpu(n, host=f"node-{n // 2}", rack="r1") for n in range(8)]
    other = gpu(99, host="node-99", rack="r2")
    run = Run()
    run.hold(0, 4, {one: {"power_watts": 80.0} for one in [*fleet, other]})
    for minute in range(5, 18):
        run.step(minute, {other: {"power_watts": 80.0 + minute}})
    (incident,) = collapse(run.last.active, (), topology_of([*fleet, other]))
    assert (incident.place, incident.subjects) == (Place(PlaceKind.RACK, "r1"), 8)
    assert incident.sentence.endswith("Look at rack r1: its power or its network switch.")


def test_a_forecast_is_no_part_of_a_fault() -> None:
    (lost,) = found(at(79, gpu()))
    expected = replace(
        lost, rule="gpu_fault_predicted", metric="", value=0.9, evidence=(Evidence("prediction:m 1", "", T0),)
    )
    assert [len(one.members) for one in collapse([lost, expected])] == [1, 1]


def test_nvlink_faults_of_two_hosts_half_a_minute_apart_are_two() -> None:
    events = [at(149, gpu(0)), at(149, gpu(9, host="node-2"), 30)]
    assert len(collapse(found(*events), events)) == 2


@pytest.mark.parametrize(
    ("burst", "root"),
    [
        ([48, 63, 94, 45], 48),
        ([63, 64, 45], 64),
        ([95, 45, 43], 95),
        ([119, 79, 45], 119),
        ([79, 119, 45], 79),
        ([74, 45, 48], 74),
        ([145, 149], 149),
        ([149, 54], 54),
        ([54, 79], 79),
        ([109, 45], 109),
        ([92, 63], 63),
    ],
)
def test_root_of_a_burst_on_one_gpu(burst: list[int], root: int) -> None:
    events = [at(code, gpu(), 2.0 * n) for n, code in enumerate(burst)]
    (incident,) = collapse(found(*events), events)
    assert incident.root.value == root


def test_three_minutes_of_silence_split() -> None:
    close = [at(48, gpu()), at(119, gpu(), 179)]
    apart = [at(48, gpu()), at(119, gpu(), 180)]
    assert len(collapse(found(*close))) == 1
    assert len(collapse(found(*apart))) == 2


def test_repeats_and_other_xids_bridge_a_gap() -> None:
    repeats = [at(48, gpu()), at(48, gpu(), 150), at(119, gpu(), 300)]
    assert len(collapse(found(*repeats))) == 1
    quiet = [at(48, gpu()), at(154, gpu(), 150), at(119, gpu(), 300)]
    assert len(collapse(found(*quiet))) == 2, "154 makes no finding"
    assert len(collapse(found(*quiet), quiet)) == 1, "but its event bridges"


def test_a_later_repeat_does_not_split_what_was_one() -> None:
    burst = [at(48, gpu()), at(48, gpu(), 150), at(119, gpu(), 300)]
    run = Run()
    run.step(5, events=burst)
    (before,) = collapse(run.last.active)
    run.step(600, events=[at(48, gpu(), 600 * 60)])
    (after,) = collapse(run.last.active)
    assert (after.id, len(after.members)) == (before.id, 2)


def test_a_burst_over_one_host_is_one_incident_and_other_hosts_are_not() -> None:
    events = [at(79, gpu(n), 10) for n in range(4)] + [at(79, gpu(9, host="node-2"), 12)]
    incidents = collapse(found(*events), events)
    assert sorted(incident.subjects for incident in incidents) == [1, 4]


def test_hosts_of_one_rack_are_one_incident() -> None:
    fleet = [gpu(n, host=f"node-{n}", rack="r1") for n in range(3)]
    values = {which: {"power_watts": 1.0} for which in fleet}
    events = [at(79, which, 20 + which.index if which.index else 20) for which in fleet]
    (incident,) = collapse(found(*events, values=values), events)
    assert incident.subjects == 3


def test_power_brake_over_a_host_is_one_incident() -> None:
    run = Run()
    run.hold(0, 3, {gpu(n): {"clocks_event_reasons_bitmask": 128.0, "power_watts": 90.0 + n} for n in range(8)})
    (incident,) = collapse(run.last.active)
    assert (incident.root.rule, incident.subjects) == ("power_brake", 8)


def test_program_faults_on_another_gpu_join_the_hardware_fault_of_their_host() -> None:
    events = [at(79, gpu(0)), at(45, gpu(1), 2), at(43, gpu(2), 3)]
    (incident,) = collapse(found(*events), events)
    assert (incident.root.value, incident.subjects) == (79, 3)


def test_silence_and_verdict_join_the_fault_however_long_after() -> None:
    run = Run()
    run.hold(0, 5, {gpu(0): {"power_watts": 80.0}, gpu(1): {"power_watts": 80.0}})
    run.step(6, {gpu(1): {"power_watts": 81.0}}, events=[at(79, gpu(0), 360)])
    for minute in range(7, 61):
        run.step(minute, {gpu(1): {"power_watts": 80.0 + minute}})
    (incident,) = collapse(run.last.active)
    assert {member.rule for member in incident.members} == {"xid_bus", "gpu_silent"}
    run.step(61, {gpu(0): {"recovery_action": 2.0}, gpu(1): {"power_watts": 80.0}})
    (incident,) = collapse(run.last.active)
    assert {member.rule for member in incident.members} == {"xid_bus", "driver_recovery_action"}


def test_a_host_that_falls_silent_with_all_its_gpus_lost_is_the_same_fault() -> None:
    fleet = [gpu(n) for n in range(4)]
    lost = [at(79, one, 360) for one in fleet]

    def incidents(*events: Event) -> list[Incident]:
        run = Run()
        run.hold(0, 5, {one: {"power_watts": 80.0} for one in fleet})
        run.step(6, {one: {"power_watts": 81.0} for one in fleet}, events=events)
        run.hold(7, 500, {one: {"temperature_celsius": 40.0} for one in fleet})
        for minute in range(501, 520):
            run.step(minute, readings=[])
        return collapse(run.last.active, events, topology_of(fleet))

    (one,) = incidents(*lost)
    assert {member.rule for member in one.members} == {"xid_bus", "metric_family_lost", "gpu_silent"}
    apart = incidents(*lost[:1])
    assert "gpu_silent" in {one.root.rule for one in apart}, "what befell one GPU explains no silent host"


@pytest.mark.parametrize(("minutes", "joined"), [(4, True), (60, False)])
def test_a_fault_of_a_rack_explains_no_host_that_falls_silent_much_later(minutes: int, joined: bool) -> None:
    fleet = [gpu(n, host=f"node-{n // 2}", rack="r1") for n in range(8)]
    run = Run()
    braked = {"clocks_event_reasons_bitmask": 128.0}
    run.hold(0, minutes, {one: braked | {"power_watts": 90.0 + n} for n, one in enumerate(fleet)})
    for minute in range(minutes + 1, minutes + 15):
        run.step(minute, {one: braked | {"power_watts": 90.0 + minute} for one in fleet[:6]})
    found = collapse(run.last.active, (), topology_of(fleet))
    dark = [one for one in found if any(member.rule == "gpu_silent" for member in one.members)]
    assert dark
    assert [one.root.rule for one in dark] == (["power_brake"] if joined else ["gpu_silent"])


def test_a_fault_that_a_gpu_tells_of_after_its_last_reading_explains_its_silence() -> None:
    def incidents(seconds: float) -> list[Incident]:
        run = Run()
        run.hold(0, 5, {gpu(0): {"power_watts": 80.0}, gpu(1): {"power_watts": 80.0}})
        event = at(79, gpu(0), seconds)
        for minute in range(6, 30):
            told = [event] if minute == 1 + seconds // 60 else []
            run.step(minute, {gpu(1): {"power_watts": 80.0 + minute}}, events=told)
        return collapse(run.last.active, [event])

    assert len(incidents(5 * 60 + 500)) == 1
    assert len(incidents(5 * 60 + 900)) == 2


def test_the_drivers_verdict_becomes_the_action_of_the_root() -> None:
    run = Run()
    run.step(0, {"recovery_action": 2.0}, events=[at(79, gpu())])
    (incident,) = collapse(run.last.active)
    assert (incident.root.rule, incident.root.action) == ("xid_bus", ActionKind.REBOOT_NODE)
    assert incident.root in incident.members
    assert incident.id == next(f.id for f in run.last.active if f.rule == "xid_bus")


def test_a_verdict_takes_nothing_from_what_a_lost_gpu_needs() -> None:
    """A GPU that fell off its bus answers no reset, whatever the driver asked for before it lost it."""
    one = gpu(0)
    for asked, action in ((1, ActionKind.DRAIN), (2, ActionKind.REBOOT_NODE)):
        verdict = Event(EventKind.RECOVERY_ACTION, one.uuid, one.host, T0 + SECOND, asked, "asked")
        (incident,) = collapse(found(at(79, one), verdict))
        assert (incident.root.value, incident.root.action) == (79, action)


def test_a_verdict_on_another_gpu_does_not_decide() -> None:
    run = Run()
    run.step(0, {gpu(0): {"power_watts": 1.0}, gpu(1): {"recovery_action": 2.0}}, events=[at(79, gpu(0))])
    (incident,) = collapse(run.last.active)
    assert (incident.subjects, incident.root.action) == (2, ActionKind.DRAIN)


def test_load_and_memory_stand_alone() -> None:
    run = Run()
    run.hold(0, 16, {"memory_used_ratio": 0.95, "utilization_ratio": 0.1})
    run.step(17, {"memory_used_ratio": 0.95, "utilization_ratio": 0.1}, events=[at(48, gpu(), 17 * 60)])
    places = {incident.root.rule: incident.place for incident in collapse(run.last.active)}
    assert places["pool_underused"] is None
    assert places["memory_full"] == Place(PlaceKind.POOL, gpu().pool)
    assert sorted(places) == [
        "memory_full",
        "pool_underused",
        "xid_memory",
    ]


def test_an_incident_keeps_its_name_as_members_arrive() -> None:
    run = Run()
    run.step(0, events=[at(149, gpu(0))])
    fleet = fabric(*(gpu(n, host="node-1" if n == 0 else f"node-{n}") for n in range(9)))
    (before,) = collapse(run.last.active, (), fleet)
    run.step(1, events=[at(145, gpu(n, host=f"node-{n}"), 20) for n in range(1, 9)])
    (after,) = collapse(run.last.active, (), fleet)
    assert (after.id, after.subjects, after.opened_ms) == (before.id, 9, before.opened_ms)


def test_what_comes_long_after_the_start_does_not_become_the_root() -> None:
    events = [at(119, gpu(), n * 100) for n in range(4)] + [at(79, gpu(), 400)]
    run = Run()
    run.step(10, events=events)
    (incident,) = collapse(run.last.active)
    assert (incident.root.value, codes(incident)) == (119, [79, 119])


def test_most_severe_first() -> None:
    events = [at(31, gpu(0)), at(79, gpu(9, host="node-7"), 500)]
    assert [incident.root.rule for incident in collapse(found(*events))] == ["xid_bus", "xid_application"]


def test_a_lone_finding_speaks_for_itself() -> None:
    (finding,) = found(at(79, gpu()))
    (incident,) = collapse([finding])
    assert (incident.sentence, incident.members) == (finding.sentence, (finding,))


def test_lost_gpu_counts_as_loss_of_the_bus() -> None:
    (finding,) = found(Event(EventKind.GPU_LOST, gpu().uuid, "node-1", T0))
    (braked,) = found(at(54, gpu()))
    assert cause_rank(finding) < cause_rank(braked)


def test_the_same_finding_twice_is_one() -> None:
    (finding,) = found(at(79, gpu()))
    (incident,) = collapse([finding, finding])
    assert incident.members == (finding,)


def test_nothing_makes_nothing() -> None:
    assert collapse([]) == []


def test_last_seen_is_that_of_the_newest_member() -> None:
    first, second = found(at(79, gpu()), at(45, gpu(), 5))
    late = replace(second, last_ms=second.last_ms + HOUR, evidence=(Evidence("x", "y", 1),))
    (incident,) = collapse([first, late])
    assert incident.last_ms == late.last_ms
    assert incident.opened_ms == instant(0)


@pytest.mark.parametrize("code", [79, 95, 119])
def test_a_hard_fault_after_a_crash_loop_is_an_incident_that_pages(code: int) -> None:
    one = gpu(1, host="node-1")
    events = [*(at(31, one, 100 * n) for n in range(7)), at(code, one, 600)]
    found_then = collapse(found(*events), events)
    assert {incident.root.value: incident.alert_level for incident in found_then} == {
        31: AlertLevel.NOTE,
        code: AlertLevel.PAGE,
    }


def test_a_crash_that_a_fault_brought_with_it_stays_with_the_fault() -> None:
    one = gpu(1, host="node-1")
    events = [at(31, one), at(79, one, 100)]
    (incident,) = collapse(found(*events), events)
    assert (incident.root.value, incident.alert_level) == (79, AlertLevel.PAGE)


def test_two_hosts_of_a_large_zone_that_fail_at_once_are_two_causes() -> None:
    def fallen(hosts: int) -> list[Incident]:
        fleet = [gpu(n, host=f"node-{n}") for n in range(hosts)]
        zone = [claim for one in fleet for claim in claims_of_node(one.host, {"topology.kubernetes.io/zone": "z"})]
        events = [at(79, fleet[0]), at(79, fleet[1], 4)]
        return collapse(found(*events), events, topology_of(fleet, zone))

    assert len(fallen(500)) == 2
    assert len(fallen(20)) == 1


def test_mig_instances_that_hang_are_ranks_of_their_own_jobs() -> None:
    """Two jobs share each GPU: what hangs is the job of the instances that do, and most of its instances must."""
    cards = [gpu(n) for n in range(4)]
    parts = [gpu(10 * n + m, uuid=f"MIG-{n}-{m}", parent=one.uuid) for n, one in enumerate(cards) for m in range(2)]
    jobs = {part.uuid: f"job-{part.uuid[-1]}" for part in parts}
    places = topology_of([*cards, *parts]).with_jobs(jobs)

    def hung(*numbers: int) -> list[Place | None]:
        (one,) = found(at(109, cards[0]))
        subjects = [Subject(SubjectKind.GPU, f"MIG-{n}-0", "node-1") for n in numbers]
        return [each.place for each in collapse([replace(one, subject=each) for each in subjects], (), places)]

    assert hung(0, 1, 2) == [Place(PlaceKind.JOB, "job-0")]
    assert len(hung(0, 1)) == 2, "two of the four instances of the job"


def dark_ports(*fleet: Gpu) -> list[Finding]:
    """The port of each of `fleet` was up, and is down."""
    run = Run()
    for minute in range(3):
        run.step(minute, {one: {'network_port_up{port="mlx5_0:1"}': float(minute == 0)} for one in fleet})
    for minute in (3, 4):
        run.step(minute, {one: {'network_port_up{port="mlx5_0:1"}': 0.0} for one in fleet})
    return run.last.active


def test_ports_of_one_rail_are_its_switch_and_ports_of_one_host_its_cards() -> None:
    fleet = [gpu(n, host=f"node-{n // 4}", labels={RAIL_LABEL: f"rail-{n % 4}"}) for n in range(16)]
    (one,) = collapse(dark_ports(*fleet[2::4]), (), topology_of(fleet))
    assert (one.subjects, one.place) == (4, Place(PlaceKind.RAIL, "rail-2"))
    assert one.sentence.startswith(
        "Rail rail-2: 4 GPUs show the same. First: node-0 GPU 2 port mlx5_0:1 (rail-2): down"
    )
    assert one.sentence.endswith("Look at rail rail-2: the switch of this rail and its uplinks.")
    assert one.sentence_zh.endswith("请检查轨道 rail-2：该轨道的交换机及其上行链路。")
    (host,) = collapse(dark_ports(*fleet[4:8]), (), topology_of(fleet))
    assert (host.subjects, host.place) == (4, Place(PlaceKind.HOST, "node-1"))
    alone = collapse(dark_ports(fleet[2], fleet[7]), (), topology_of(fleet))
    assert [one.subjects for one in alone] == [1, 1]
    both = collapse(dark_ports(fleet[2], fleet[6]), (), topology_of(fleet))
    assert [one.subjects for one in both] == [1, 1], "two of four hosts are too few for a rail that agents alone name"
    leaf = [
        claim for n in range(4) for claim in claims_of_node(f"node-{n}", {"topology.kubernetes.io/switch": "leaf-1"})
    ]
    unnamed = [replace(one, labels={}) for one in fleet]
    (switch,) = collapse(dark_ports(*unnamed), (), topology_of(unnamed, leaf))
    assert (switch.subjects, switch.place) == (16, Place(PlaceKind.SWITCH, "leaf-1"))


def test_a_lost_network_card_and_the_ports_behind_it_are_one() -> None:
    fleet = [gpu(n) for n in range(8)]
    run = Run()
    run.step(0, {one: {'network_port_up{port="mlx5_0:1"}': 1.0} for one in fleet})
    lost = Event(
        EventKind.NODE_FAULT, "", "node-1", instant(1), 11, "network card 0000:19:00.0: Fatal error 3 detected"
    )
    for minute in (1, 2, 3):
        dark = {one: {'network_port_up{port="mlx5_0:1"}': float(one not in fleet[:2])} for one in fleet}
        run.step(minute, dark, events=[lost] if minute == 1 else ())
    (one,) = collapse(run.last.active, (), topology_of(fleet))
    assert (one.root.rule, one.subjects, one.place) == ("nic_lost", 3, Place(PlaceKind.HOST, "node-1"))


def test_a_leak_and_the_gpus_that_it_heats_are_one() -> None:
    fleet = [gpu(n) for n in range(8)]
    run = Run()
    leak = Event(EventKind.NODE_FAULT, "", "node-1", instant(0), 51, "leak detector tray of Chassis is Critical")
    for minute in range(6):
        warm = {one: {"temperature_celsius": 91.0 if one in fleet[:2] and minute > 1 else 60.0} for one in fleet}
        run.step(minute, warm, events=[leak] if minute == 0 else ())
    (one,) = collapse(run.last.active, (), topology_of(fleet))
    assert (one.root.rule, one.place) == ("leak_detected", Place(PlaceKind.HOST, "node-1"))
    assert {member.rule for member in one.members} >= {"leak_detected", "temperature_high"}
    over = replace(leak, code=151, at_ms=instant(6))
    run.step(6, {one: {"temperature_celsius": 60.0} for one in fleet}, events=[over])
    assert "leak_detected" not in {finding.rule for finding in run.last.active}
