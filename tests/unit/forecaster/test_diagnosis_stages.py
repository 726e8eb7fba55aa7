"""Which stage limits a job, on jobs whose bottleneck is known because it was put there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.diagnosis import DiagnosisVerdict
from tocsin.domain.reading import Gpu, Owner
from tocsin.forecaster.diagnosis.stages import METRICS, diagnose_job, signals, stage_scores
from tocsin.forecaster.diagnosis.window import ObservedJob, WindowMeans, jobs, means
from tocsin.store.port import Columns
from tocsin_testing.builders import T0, gpu

WINDOW = 900_000
HEALTHY = {
    "gpu_utilization_ratio": 0.97,
    "gpu_sm_active_ratio": 0.82,
    "gpu_tensor_active_ratio": 0.5,
    "gpu_dram_active_ratio": 0.45,
    "gpu_power_watts": 610.0,
    "gpu_power_limit_enforced_watts": 700.0,
    "gpu_sm_clock_hertz": 1.9e9,
    "gpu_sm_clock_max_hertz": 1.98e9,
    "gpu_pcie_receive_bytes_per_second": 1e9,
    "gpu_pcie_transmit_bytes_per_second": 0.5e9,
    "gpu_pcie_link_generation": 5.0,
    "gpu_pcie_link_width": 16.0,
    "gpu_pcie_link_width_max": 16.0,
    "gpu_nvlink_bandwidth_bytes_per_second": 60e9,
    "gpu_nvlink_links_max": 18.0,
    "host_cpu_utilization_ratio": 0.3,
    "host_cpu_iowait_ratio": 0.01,
    "host_cpu_pressure_ratio": 0.01,
    "host_io_pressure_ratio": 0.02,
}
"""An H100 that trains; levels as DCGM profiles of well-tuned training show them (own choice)."""
STARVED = {
    "gpu_utilization_ratio": 0.3,
    "gpu_sm_active_ratio": 0.2,
    "gpu_tensor_active_ratio": 0.1,
    "gpu_dram_active_ratio": 0.1,
    "gpu_power_watts": 220.0,
}
SPINNING = {"gpu_sm_active_ratio": 0.15, "gpu_tensor_active_ratio": 0.05, "gpu_dram_active_ratio": 0.08}
CASES = {
    "storage": (STARVED | {"host_io_pressure_ratio": 0.5, "host_cpu_iowait_ratio": 0.3}, DiagnosisVerdict.STORAGE),
    "cpu": (STARVED | {"host_cpu_utilization_ratio": 0.98, "host_cpu_pressure_ratio": 0.6}, DiagnosisVerdict.CPU),
    "host to device": (STARVED | {"gpu_pcie_receive_bytes_per_second": 40e9}, DiagnosisVerdict.HOST_TO_DEVICE),
    "device": ({}, DiagnosisVerdict.DEVICE),
    "memory of the device": (SPINNING | {"gpu_dram_active_ratio": 0.9}, DiagnosisVerdict.DEVICE),
    "nvlink": (SPINNING | {"gpu_nvlink_bandwidth_bytes_per_second": 500e9}, DiagnosisVerdict.BETWEEN_GPUS),
    "waiting in a collective": (SPINNING | {"gpu_power_watts": 250.0}, DiagnosisVerdict.BETWEEN_GPUS),
    "collectives over PCIe": (
        SPINNING
        | {
            "gpu_nvlink_bandwidth_bytes_per_second": np.nan,
            "gpu_pcie_receive_bytes_per_second": 20e9,
            "gpu_pcie_transmit_bytes_per_second": 19e9,
        },
        DiagnosisVerdict.BETWEEN_GPUS,
    ),
    "device to host": (STARVED | {"gpu_pcie_transmit_bytes_per_second": 40e9}, DiagnosisVerdict.DEVICE_TO_HOST),
    "no profiling counters": (
        dict.fromkeys(("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio"), np.nan),
        DiagnosisVerdict.DEVICE,
    ),
}
MEMBERS = tuple(gpu(n, model="NVIDIA H100 80GB HBM3") for n in range(8))


def table(values: dict[str, float], gpus: tuple[Gpu, ...] = MEMBERS, readings: int = 90) -> WindowMeans:
    row = [values.get(name, np.nan) for name in METRICS]
    return WindowMeans(gpus, METRICS, np.array([row] * len(gpus)), np.full(len(gpus), readings))


@pytest.mark.parametrize("case", CASES)
def test_the_stage_that_was_made_slow_is_named(case: str) -> None:
    changed, expected = CASES[case]
    found = diagnose_job(ObservedJob("train", MEMBERS), table(HEALTHY | changed), T0, WINDOW)
    assert found.verdict is expected, found.sentence
    assert "train on 8 GPUs is limited by" in found.sentence
    assert "受限于" in found.sentence_zh
    assert found.remedy
    assert 0.35 <= found.score <= 1.0
    assert {piece.name for piece in found.evidence} >= {"resident", "computing", f"stage:{expected}"}


SPREAD = tuple(gpu(n, host=f"node-{n // 4}", model="NVIDIA H100 80GB HBM3") for n in range(8))
FETCHED = SPINNING | {
    "network_utilization_ratio": 0.5,
    "gpu_pcie_receive_bytes_per_second": 27e9,
    "gpu_pcie_transmit_bytes_per_second": 26e9,
}
"""Cards fetch from the GPUs and bring to them what other hosts ask for and send."""


def test_gpus_that_wait_for_other_hosts_are_limited_by_the_network() -> None:
    def verdict(changed: dict[str, float], members: tuple[Gpu, ...] = SPREAD) -> DiagnosisVerdict:
        return diagnose_job(ObservedJob("train", members), table(HEALTHY | changed, members), T0, WINDOW).verdict

    assert verdict(FETCHED) is DiagnosisVerdict.NETWORK
    assert verdict(FETCHED, MEMBERS) is DiagnosisVerdict.BETWEEN_GPUS, "on one host the network carries something else"
    busier_inside = FETCHED | {"network_utilization_ratio": 0.03}
    assert verdict(busier_inside) is DiagnosisVerdict.BETWEEN_GPUS
    assert verdict(busier_inside | {"network_resends_per_second": 5.0}) is DiagnosisVerdict.NETWORK, "40 by all of them"
    assert verdict({"network_utilization_ratio": 0.3}) is DiagnosisVerdict.DEVICE
    dark = table(HEALTHY | busier_inside, SPREAD)
    dark.values[:, METRICS.index("network_ports_down")] = [0, 0, 0, 0, 0, 1, 0, 0]
    found = diagnose_job(ObservedJob("train", SPREAD), dark, T0, WINDOW)
    assert found.sentence == (
        "train on 8 GPUs is limited by the network between its hosts; a network port of node-1 GPU 5 is down."
    )
    assert found.sentence_zh.endswith("受限于主机之间的网络;node-1 GPU 5 的网络端口断开。")


def test_without_the_nodes_own_figures_waiting_is_not_blamed_on_anything() -> None:
    blind = HEALTHY | STARVED | {name: np.nan for name in METRICS if name.startswith("host_")}
    found = diagnose_job(ObservedJob("train", MEMBERS), table(blind), T0, WINDOW)
    assert found.verdict is DiagnosisVerdict.UNCLEAR
    assert "CPU and storage of the node are not measured" in found.sentence


def test_two_stages_alike_are_not_decided() -> None:
    both = HEALTHY | STARVED | {"host_io_pressure_ratio": 0.3, "host_cpu_pressure_ratio": 0.3}
    found = diagnose_job(ObservedJob("train", MEMBERS), table(both), T0, WINDOW)
    assert found.verdict is DiagnosisVerdict.UNCLEAR
    assert "show about alike" in found.sentence


@pytest.mark.parametrize(
    ("means_", "verdict", "words"),
    [
        (table(HEALTHY, readings=2), DiagnosisVerdict.NOT_ENOUGH_DATA, "2 readings in the window, 5 needed"),
        (table({}), DiagnosisVerdict.NOT_ENOUGH_DATA, "no GPU of it reports its utilisation"),
        (table({"gpu_utilization_ratio": 0.0}), DiagnosisVerdict.UNCLEAR, "its GPUs do nothing"),
    ],
)
def test_what_cannot_be_told_says_why(means_: WindowMeans, verdict: DiagnosisVerdict, words: str) -> None:
    found = diagnose_job(ObservedJob("train", MEMBERS), means_, T0, WINDOW)
    assert found.verdict is verdict
    assert words in found.sentence
    assert not found.remedy


def test_the_gpu_that_holds_the_others_up_is_named() -> None:
    slow = table(HEALTHY)
    slow.values[5, METRICS.index("gpu_sm_clock_hertz")] = 1.2e9
    found = diagnose_job(ObservedJob("train", MEMBERS), slow, T0, WINDOW)
    assert "node-1 GPU 5 runs at 61% of its clock, the others at 96%" in found.sentence
    narrow = table(HEALTHY)
    narrow.values[2, METRICS.index("gpu_pcie_link_width")] = 8.0
    assert (
        "node-1 GPU 2 has only 50% of its PCIe lanes"
        in diagnose_job(ObservedJob("train", MEMBERS), narrow, T0, WINDOW).sentence
    )


def test_one_gpu_alone_never_waits_for_others() -> None:
    alone = table(HEALTHY | SPINNING, MEMBERS[:1])
    assert stage_scores(signals(alone))[DiagnosisVerdict.BETWEEN_GPUS] == 0.0


values = st.one_of(st.just(np.nan), st.floats(0, 2e12, allow_nan=False))


@given(st.lists(st.lists(values, min_size=len(METRICS), max_size=len(METRICS)), min_size=1, max_size=4), st.randoms())
def test_whatever_the_figures_a_verdict_is_one_sentence_and_order_is_nothing(rows: list[list[float]], chance) -> None:  # type: ignore[no-untyped-def]
    gpus = MEMBERS[: len(rows)]
    one = diagnose_job(
        ObservedJob("j", gpus), WindowMeans(gpus, METRICS, np.array(rows), np.full(len(rows), 9)), T0, WINDOW
    )
    assert one.sentence.endswith(".")
    assert one.sentence_zh.endswith("。")
    assert 0.0 <= one.score <= 1.0
    order = list(range(len(rows)))
    chance.shuffle(order)
    moved = WindowMeans(gpus, METRICS, np.array(rows)[order], np.full(len(rows), 9))
    assert diagnose_job(ObservedJob("j", gpus), moved, T0, WINDOW).verdict is one.verdict


def test_jobs_are_those_of_owners_and_steps_of_a_slurm_job_are_one() -> None:
    a, b, c, d = MEMBERS[:4]
    owners = {
        a.uuid: [Owner(1, slurm_job="17.0")],
        b.uuid: [Owner(2, slurm_job="17.1"), Owner(3, pod="web", namespace="shop")],
        c.uuid: [],
    }
    found = jobs([d, c, b, a], owners, frozenset({c.uuid}))
    assert [(job.name, job.gpus) for job in found] == [
        ("Slurm job 17", (a, b)),
        ("shop/web", (b,)),
        ("work on node-1", (c,)),
    ]


def test_means_are_of_what_is_there() -> None:
    a, b, c = MEMBERS[:3]
    values_ = np.array([[1.0, np.nan], [3.0, np.nan], [5.0, 7.0]])
    columns = Columns((b.uuid, a.uuid), ("x", "y"), np.array([1, 1, 0], np.int32), np.arange(3), values_)
    found = means(columns, [a, b, c])
    np.testing.assert_array_equal(found.values, [[2.0, np.nan], [5.0, 7.0], [np.nan, np.nan]])
    assert found.readings.tolist() == [2, 1, 0]
