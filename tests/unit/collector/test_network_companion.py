"""Network ports out of a sysfs tree: which GPU each serves, what it counts, and when it is said to be down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.network.companion import Network
from tocsin.collector.network.ethtool import statistics, sum_of_pauses
from tocsin.collector.network.ports import MOST_PORTS, find_ports
from tocsin.collector.network.rails import homes
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, SECOND, ManualClock
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.sysfs_tree import SysfsTree, write

SWITCH = ("pci0000:15", "0000:15:01.0", "0000:16:00.0"), ("pci0000:97", "0000:97:01.0", "0000:98:00.0")
BUSES = ("0000:18:00.0", "0000:9a:00.0")


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    """Two GPUs, each behind a PCIe switch of its own."""
    made = SysfsTree(tmp_path / "sys")
    for switch, bus in zip(SWITCH, BUSES, strict=True):
        made.pci(*switch, bus)
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def batch() -> Batch:
    return Batch(
        readings=[reading(gpu(n, pci_bus_id=f"0000{bus}"), T0, power_watts=9.0) for n, bus in enumerate(BUSES)]
    )


def network(tree: SysfsTree, clock: ManualClock, own: OwnMetrics | None = None, **more: object) -> Network:
    state = tree.root.with_name("network.json")
    more = {"pauses": lambda _: None, **more}
    return Network(tree.root, clock, own or OwnMetrics(), state=state, **more)  # type: ignore[arg-type]


def seen(companion: Network) -> tuple[Reading, ...]:
    companion.look()
    return tuple(companion.enrich(batch(), T0).readings)


def ports_of(one: Reading) -> dict[str, float]:
    return {key.removeprefix("network_"): value for key, value in one.values.items() if key.startswith("network_")}


def test_each_port_goes_with_the_gpu_behind_its_switch(tree: SysfsTree, clock: ManualClock) -> None:
    tree.card("mlx5_0", *SWITCH[1], "0000:9b:00.0", symbol_error=7, port_xmit_data=250, unicast_rcv_packets=1)
    tree.card("mlx5_1", *SWITCH[0], "0000:19:00.0", port_xmit_data=250)
    rails = {"mlx5_0": "rail-a", "mlx5_1:1": "rail-b"}
    one, two = seen(network(tree, clock, rails=rails))
    assert ports_of(two) == {
        'port_up{port="mlx5_0:1"}': 1.0,
        'port_speed_bytes_per_second{port="mlx5_0:1"}': 5e10,
        'symbol_errors_total{port="mlx5_0:1"}': 7.0,
        'link_downs_total{port="mlx5_0:1"}': 0.0,
        'transmit_bytes_total{port="mlx5_0:1"}': 1000.0,
        "ports_down": 0.0,
    }
    assert 'transmit_bytes_total{port="mlx5_1:1"}' not in ports_of(one), "32-bit words wrap within seconds"
    label = "topology.kubernetes.io/rail"
    assert (one.gpu.labels[label], two.gpu.labels[label]) == ("rail-b", "rail-a")


def test_a_port_that_never_was_up_is_not_down(tree: SysfsTree, clock: ManualClock) -> None:
    used = tree.card("mlx5_0", *SWITCH[0], "0000:19:00.0")
    empty = tree.card("mlx5_1", *SWITCH[1], "0000:9b:00.0")
    write(empty, state="1: DOWN", phys_state="2: Polling")
    seen(network(tree, clock))
    write(used, state="1: DOWN", phys_state="2: Polling")
    companion = network(tree, clock)  # the agent was started anew: the state file knows
    one, two = seen(companion)
    assert ports_of(one)['port_up{port="mlx5_0:1"}'] == 0.0
    assert not any(name.startswith("port_up") for name in ports_of(two))
    write(used, phys_state="3: Disabled")
    assert not any(name.startswith("port_up") for name in ports_of(seen(companion)[0])), "a person has switched it off"
    write(used, phys_state="2: Polling")
    clock.advance(7 * DAY)
    assert not any(name.startswith("port_up") for name in ports_of(seen(companion)[0])), "it was taken out of use"


def test_a_card_that_left_the_bus_is_down_and_one_in_a_container_is_not(tree: SysfsTree, clock: ManualClock) -> None:
    for number, switch in enumerate(SWITCH):
        tree.card(f"mlx5_{number}", *switch, f"0000:19:0{number}.0")
    companion = network(tree, clock)
    seen(companion)
    for number in range(2):
        (tree.root / f"class/infiniband/mlx5_{number}").unlink()
    (tree.root / "bus/pci/devices/0000:19:00.0").unlink()
    one, two = seen(companion)
    assert ports_of(one) == {'port_up{port="mlx5_0:1"}': 0.0, "ports_down": 1.0}
    assert ports_of(two) == {}


def test_roce_is_up_by_its_carrier_and_counts_drops_and_pauses(tree: SysfsTree, clock: ManualClock) -> None:
    way = (*SWITCH[0], "0000:19:00.0")
    port = tree.card("mlx5_0", *way, layer="Ethernet", link_downed=255)
    write(port / "hw_counters", out_of_sequence=5, packet_seq_err=2, implied_nak_seq_err=1, local_ack_timeout_err=4)
    net = tree.interface("ens1f0", *way, carrier_down_count=3)
    tree.interface("ens1f0_0", *way, phys_port_name="pf0vf0")
    write(net / "statistics", rx_dropped=10, tx_dropped=1)
    companion = network(tree, clock, pauses={"ens1f0": 77}.get)
    found = {key.partition("{")[0]: value for key, value in ports_of(seen(companion)[0]).items()}
    assert found | {"port_up": 1.0, "link_downs_total": 3.0, "dropped_packets_total": 11.0} == found
    assert found | {"out_of_sequence_total": 5.0, "sequence_errors_total": 3.0, "ack_timeouts_total": 4.0} == found
    assert found["pause_frames_total"] == 77.0
    write(net, carrier=0)
    assert ports_of(seen(companion)[0])['port_up{port="mlx5_0:1"}'] == 0.0
    (net / "carrier").unlink()  # EINVAL: set down by a person
    assert 'port_up{port="mlx5_0:1"}' not in ports_of(seen(companion)[0])


def test_use_and_resends_are_those_since_the_look_before(tree: SysfsTree, clock: ManualClock) -> None:
    more = {"unicast_rcv_packets": 1, "port_xmit_data": 0, "port_rcv_data": 0}
    first = tree.card("mlx5_0", *SWITCH[0], "0000:19:00.0", **more)
    second = tree.card("mlx5_1", *SWITCH[0], "0000:1a:00.0", **more)
    write(first / "hw_counters", packet_seq_err=100, local_ack_timeout_err=1)
    companion = network(tree, clock)
    assert {key for key in ports_of(seen(companion)[0]) if "{" not in key} == {"ports_down"}
    clock.advance(10 * SECOND)
    write(first / "counters", port_xmit_data=25_000_000_000, port_rcv_data=50_000_000_000)
    write(first / "hw_counters", packet_seq_err=130, local_ack_timeout_err=11)
    write(second / "counters", port_xmit_data=1_000)
    write(second, state="1: DOWN")
    found = {key: value for key, value in ports_of(seen(companion)[0]).items() if "{" not in key}
    assert found == {"ports_down": 1.0, "utilization_ratio": pytest.approx(0.4), "resends_per_second": 4.0}
    clock.advance(10 * SECOND)
    write(first / "counters", port_xmit_data=0, port_rcv_data=0)  # the driver was loaded anew
    write(first / "hw_counters", packet_seq_err=0, local_ack_timeout_err=0)
    write(second, state="4: ACTIVE")
    assert {key: value for key, value in ports_of(seen(companion)[0]).items() if "{" not in key} == {
        "ports_down": 0.0,
        "utilization_ratio": 0.0,  # of the second port
    }


def test_ethernet_is_read_where_it_is_asked_for(tree: SysfsTree, clock: ManualClock) -> None:
    tree.interface("ens3", *SWITCH[0], "0000:19:00.0")
    tree.interface("eno1", "pci0000:00", "0000:00:03.0")
    (tree.interface("ens3v0", *SWITCH[0], "0000:19:00.2") / "device/physfn").mkdir()
    assert [port.name for port in find_ports(tree.root, [])] == []
    assert [port.name for port in find_ports(tree.root, ["ens*"])] == ["ens3"]
    assert ports_of(seen(network(tree, clock, interfaces=["ens*"]))[0])['port_up{port="ens3"}'] == 1.0


def test_a_card_that_hangs_costs_its_figures_alone(tree: SysfsTree, clock: ManualClock) -> None:
    tree.card("mlx5_0", *SWITCH[0], "0000:19:00.0")
    companion = network(tree, clock)
    seen(companion)
    clock.advance(31 * SECOND)
    one, two = companion.enrich(batch(), T0).readings
    assert one.missing["network_port_up"] is Missing.TIMED_OUT
    assert (ports_of(one), one.values["gpu_power_watts"], two) == ({}, 9.0, batch().readings[1])


def test_garbage_bounds_and_counters_at_their_cap(tree: SysfsTree, clock: ManualClock) -> None:
    port = tree.card("mlx5_0", *SWITCH[0], "0000:19:00.0", local_link_integrity_errors=15)
    write(port / "counters", symbol_error="-1", link_downed="9" * 5000, port_rcv_errors="x")
    own = OwnMetrics()
    tree.root.with_name("network.json").write_text("[" * 60_000)
    one, _ = seen(network(tree, clock, own))
    errors = {key for key in ports_of(one) if "errors" in key or "downs" in key}
    assert errors == {'link_integrity_errors_total{port="mlx5_0:1"}'}
    assert own.value("tocsin_network_counters_at_cap") == 1
    for n in range(MOST_PORTS):
        tree.card(f"x{n:03}", *SWITCH[1], f"0000:{n + 1:02x}:01.0")
    seen(network(tree, clock, own))
    assert own.value("tocsin_network_ports") == MOST_PORTS
    assert own.value("tocsin_dropped_total", what="port", reason="network_full") == 1


def test_gpus_that_are_equally_near_share_the_ports() -> None:
    flat = {"a": (("pci0000:00", "1"), 0), "b": (("pci0000:00", "2"), 0), "c": ((), 1)}
    ports = [(str(n), ("pci0000:00", str(n + 9)), 0) for n in range(4)]
    assert homes(ports, flat) == {"0": "a", "1": "b", "2": "a", "3": "b"}
    assert homes([("far", ("pci0000:77",), 1)], flat) == {"far": "c"}
    assert homes([("nowhere", (), None)], {}) == {}


def test_pause_frames_are_those_of_the_driver() -> None:
    by_priority = {"rx_prio3_pause": 5, "tx_prio3_pause": 6, "rx_prio3_pause_duration": 9, "rx_pause_ctrl_phy": 11}
    assert sum_of_pauses(by_priority) == 11
    assert sum_of_pauses({"rx_pause_ctrl_phy": 4, "tx_pause_ctrl_phy": 3}) == 7
    assert sum_of_pauses({"rx_drops": 1}) is None
    assert statistics("no-such-if") == {}
