"""Which of seven stages limits a job: storage, CPU, host to device, device, between GPUs, network, device to host.

Own synthesis, without a model that was trained: a stage speaks by what it alone makes visible. A GPU without kernels
waits for its input, and the node's own waits tell whether for storage or for CPUs; a link near its capacity is the
limit whatever else is seen; kernels that are resident while SMs and memory rest wait for other GPUs, over the network
where that is busier than the links inside the hosts; SMs that work are the limit themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.diagnosis import Diagnosis, DiagnosisKind, DiagnosisVerdict
from tocsin.domain.finding import Evidence
from tocsin.forecaster.diagnosis.window import Floats, ObservedJob, WindowMeans, mean
from tocsin.forecaster.trend.statements import where

MIN_READINGS = 5
LEAST = 0.35
"""A stage below this score limits nothing that can be seen."""
AHEAD = 1.15
"""How much stronger than the next the strongest stage must be."""
IDLE = 0.05
COLLECTIVE_BYTES = 0.02
"""Share of a link's capacity above which GPUs count as talking to each other."""
SLOW_CLOCK = 0.95
"""A GPU whose clock lies below this share of the job's median holds the others up."""

RESENDS = 10.0
"""Packets a second that a job's ports have to send again, from which on the network is in trouble (own choice)."""

Scores = dict[DiagnosisVerdict, float]


def stage_scores(seen: Signals) -> Scores:
    """How strongly each stage shows itself, 0 to 1."""
    resident, computing = share(seen.resident), share(seen.computing)
    waiting = max(0.0, resident - computing)
    gap = 1.0 - resident
    receive, transmit, nvlink = share(seen.receive), share(seen.transmit), share(seen.nvlink)
    several = seen.resident.size > 1
    talks = several and max(nvlink, min(receive, transmit)) >= COLLECTIVE_BYTES
    mutual = several and min(receive, transmit) >= 0.5 * max(receive, transmit) and waiting > gap
    between = max(waiting if talks else 0.0, nvlink / SATURATED if several else 0.0)
    into, out = (0.0, 0.0) if mutual else (receive / SATURATED, transmit / SATURATED)
    if mutual:
        between = max(between, max(receive, transmit) / SATURATED)
    network = share(seen.network) / SATURATED
    if _over_network(seen, nvlink):
        # What cards fetch from GPUs passes their PCIe links as well.
        network, between = max(network, waiting), nvlink / SATURATED
    found = {
        DiagnosisVerdict.STORAGE: gap * share(seen.storage),
        DiagnosisVerdict.CPU: gap * share(seen.cpu),
        DiagnosisVerdict.HOST_TO_DEVICE: into,
        DiagnosisVerdict.DEVICE: computing,
        DiagnosisVerdict.BETWEEN_GPUS: between,
        DiagnosisVerdict.NETWORK: network,
        DiagnosisVerdict.DEVICE_TO_HOST: out,
    }
    return {stage: min(score, 1.0) for stage, score in found.items()}


def _over_network(seen: Signals, nvlink: float) -> bool:
    """Whether GPUs wait for those of other hosts: the network is busier than the NVLinks, or in trouble."""
    used = share(seen.network)
    trouble = bool(np.nansum(seen.ports_down) > 0 or np.nansum(seen.resends) >= RESENDS)
    return used >= COLLECTIVE_BYTES and (used >= nvlink or trouble)


def diagnose_job(job: ObservedJob, found: WindowMeans, now_ms: int, window_ms: int) -> Diagnosis:
    """The stage that limits `job`, by the means of its GPUs over the last `window_ms`."""
    made = _Writer(job, now_ms, window_ms)
    readings = int(found.readings.min(initial=1 << 31))
    if readings < MIN_READINGS:
        reason = f"{readings} readings in the window, {MIN_READINGS} needed"
        return made.plain(
            DiagnosisVerdict.NOT_ENOUGH_DATA, reason, f"窗口内只有 {readings} 次读数,至少需要 {MIN_READINGS} 次"
        )
    seen = signals(found)
    if not np.isfinite(seen.resident).any():
        return made.plain(
            DiagnosisVerdict.NOT_ENOUGH_DATA, "no GPU of it reports its utilisation", "没有 GPU 报告利用率"
        )
    if share(seen.resident) < IDLE and share(seen.storage) + share(seen.cpu) < LEAST:
        return made.plain(
            DiagnosisVerdict.UNCLEAR, "its GPUs do nothing, and the node waits for nothing", "GPU 空闲,节点也没有等待"
        )
    scores = stage_scores(seen)
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    (stage, score), (_, second) = ranked[:2]
    if score < LEAST or score < AHEAD * second:
        return made.plain(DiagnosisVerdict.UNCLEAR, *_why_unclear(seen, ranked))
    return made.stage(stage, score, _evidence(seen, scores, now_ms), _straggler(job, seen))


def _why_unclear(seen: Signals, ranked: list[tuple[DiagnosisVerdict, float]]) -> tuple[str, str]:
    blind = not np.isfinite(seen.storage).any() and not np.isfinite(seen.cpu).any()
    if blind and share(seen.resident) < 0.5:
        rest = f"{1 - share(seen.resident):.0%}"
        return (
            f"its GPUs wait {rest} of the time, and CPU and storage of the node are not measured",
            f"GPU 有 {rest} 的时间在等待,而节点的 CPU 和存储没有测量",
        )
    (first, one), (then, two) = ranked[:2]
    if one < LEAST:
        return f"no stage stands out (strongest is {STAGES[first][0]}, {one:.2f})", "没有明显的瓶颈阶段"
    return (
        f"{STAGES[first][0]} ({one:.2f}) and {STAGES[then][0]} ({two:.2f}) show about alike",
        f"{STAGES[first][1]}({one:.2f})与{STAGES[then][1]}({two:.2f})程度相近",
    )


_SEEN = (
    ("resident", "share of time with a kernel on the GPU"),
    ("computing", "how hard SMs and memory work"),
    ("receive", "share of the PCIe link used towards the GPU"),
    ("transmit", "share of the PCIe link used from the GPU"),
    ("nvlink", "share of the NVLinks used"),
    ("network", "share of the network ports used"),
    ("resends", "packets sent again a second, of each GPU's network ports"),
    ("clock", "SM clock as a share of its maximum"),
    ("storage", "how much the node waits for storage"),
    ("cpu", "how short the node is of CPUs"),
)


def _evidence(seen: Signals, scores: Scores, now_ms: int) -> tuple[Evidence, ...]:
    read = [
        Evidence(name, text, now_ms, share(values))
        for name, text in _SEEN
        if np.isfinite(values := getattr(seen, name)).any()
    ]
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return (*read, *(Evidence(f"stage:{stage}", STAGES[stage][0], now_ms, score) for stage, score in ranked))


def _straggler(job: ObservedJob, seen: Signals) -> tuple[str, str]:
    """The GPU that holds the others up, in words; empty where none does."""
    if np.nansum(seen.ports_down) > 0:
        dark = int(np.nanargmax(seen.ports_down))
        return f"; a network port of {where(job.gpus[dark])} is down", f";{where(job.gpus[dark])} 的网络端口断开"
    known = np.isfinite(seen.clock)
    if known.sum() > 2:
        usual = float(np.median(seen.clock[known]))
        slowest = int(np.nanargmin(seen.clock))
        if seen.clock[slowest] < SLOW_CLOCK * usual:
            slow, clock = where(job.gpus[slowest]), seen.clock[slowest]
            return (
                f"; {slow} runs at {clock:.0%} of its clock, the others at {usual:.0%}",
                f";{slow} 的时钟只有 {clock:.0%},其余为 {usual:.0%}",
            )
    if np.isfinite(seen.lanes).any():
        narrow = int(np.nanargmin(seen.lanes))
        if seen.lanes[narrow] < 1.0:
            slow, lanes = where(job.gpus[narrow]), seen.lanes[narrow]
            return f"; {slow} has only {lanes:.0%} of its PCIe lanes", f";{slow} 只有 {lanes:.0%} 的 PCIe 通道"
    return "", ""


@dataclass(frozen=True, slots=True)
class _Writer:
    job: ObservedJob
    now_ms: int
    window_ms: int

    def plain(self, verdict: DiagnosisVerdict, reason: str, reason_zh: str) -> Diagnosis:
        sentence = f"{self.job.name}: what limits it cannot be told: {reason}."
        return self._made(verdict, 0.0, sentence, f"{self.job.name_zh}:无法判断瓶颈:{reason_zh}。")

    def stage(
        self, stage: DiagnosisVerdict, score: float, evidence: tuple[Evidence, ...], straggler: tuple[str, str]
    ) -> Diagnosis:
        english, chinese = STAGES[stage]
        count = len(self.job.gpus)
        sentence = f"{self.job.name} on {count} GPU{'s' if count != 1 else ''} is limited by {english}{straggler[0]}."
        chinese = f"{self.job.name_zh}({count} 块 GPU)受限于{chinese}{straggler[1]}。"
        return self._made(stage, score, sentence, chinese, evidence)

    def _made(
        self, verdict: DiagnosisVerdict, score: float, english: str, chinese: str, evidence: tuple[Evidence, ...] = ()
    ) -> Diagnosis:
        return Diagnosis(
            DiagnosisKind.SLOW_JOB,
            verdict,
            self.job.name,
            self.job.hosts,
            tuple(gpu.uuid for gpu in self.job.gpus),
            self.now_ms,
            self.window_ms,
            score,
            english,
            chinese,
            REMEDIES.get(verdict, ""),
            evidence,
            self.job.simulated,
        )


# What the metrics of a job say about each stage on the way of its data, as shares of 0 to 1.

PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one lane in one direction by generation, line code taken off (PCI-SIG base specifications)."""
NVLINK_BYTES = 50e9
NVLINK_BYTES_BLACKWELL = 100e9
"""Bytes a second of one NVLink, both directions together: generations 3 and 4 (A100 600 GB/s over 12 links, H100 900
over 18), and 5 (B200 1,800 over 18); vendor data sheets."""
BLACKWELL = ("B200", "B300")
SATURATED = 0.6
"""Mean share of a link's capacity from which on it counts as the limit: copies come in bursts, and protocol overhead
leaves about 0.85 at best (own choice)."""
IDLE_POWER = 0.12
"""Power of a GPU that does nothing as a share of its limit: H100 70 to 85 of 700 W (own choice)."""
PRESSURE_FULL = 0.3
"""Share of time in which some task waits, from which on waiting counts in full (own choice)."""
CPU_BUSY = 0.7
"""CPU utilisation of a node above which its processors begin to be short (own choice)."""

METRICS = (
    "gpu_utilization_ratio",
    "gpu_sm_active_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_power_watts",
    "gpu_power_limit_enforced_watts",
    "gpu_sm_clock_hertz",
    "gpu_sm_clock_max_hertz",
    "gpu_pcie_receive_bytes_per_second",
    "gpu_pcie_transmit_bytes_per_second",
    "gpu_pcie_link_generation",
    "gpu_pcie_link_width",
    "gpu_pcie_link_width_max",
    "gpu_nvlink_bandwidth_bytes_per_second",
    "gpu_nvlink_links_max",
    "network_utilization_ratio",
    "network_resends_per_second",
    "network_ports_down",
    "host_cpu_utilization_ratio",
    "host_cpu_iowait_ratio",
    "host_cpu_pressure_ratio",
    "host_io_pressure_ratio",
)
"""What a diagnosis of a slow job looks at; any of it may be missing."""


@dataclass(frozen=True, slots=True)
class Signals:
    """All float64[g], a value per GPU, NaN where unknown.

    `resident` is the share of time in which a kernel was there, `computing` how hard the GPU worked: SMs, memory
    or, where neither is counted, power. `receive` and `transmit` are shares of the PCIe link's capacity in either
    direction, `nvlink` of all links in both. `network` is the share of the busiest network port's speed that is used,
    `resends` the packets a second that have to be sent again, `ports_down` how many ports are down; all three unknown
    for a job on one host. `clock` is the SM clock's share of its maximum, `lanes` that of the link's
    width. `storage` and `cpu` say how much the node waits for either.
    """

    resident: Floats
    computing: Floats
    receive: Floats
    transmit: Floats
    nvlink: Floats
    network: Floats
    resends: Floats
    ports_down: Floats
    clock: Floats
    lanes: Floats
    storage: Floats
    cpu: Floats


def signals(found: WindowMeans) -> Signals:
    """The signals of the GPUs of one job."""
    # Figures that no hardware gives may overflow; shares are cut to 0 to 1 where they are used.
    with np.errstate(over="ignore", invalid="ignore"):
        link = _link_bytes(found)
        return Signals(
            resident=found.of("gpu_utilization_ratio"),
            computing=_computing(found),
            receive=found.of("gpu_pcie_receive_bytes_per_second") / link,
            transmit=found.of("gpu_pcie_transmit_bytes_per_second") / link,
            nvlink=_nvlink(found),
            network=_of_hosts(found, "network_utilization_ratio"),
            resends=_of_hosts(found, "network_resends_per_second"),
            ports_down=_of_hosts(found, "network_ports_down"),
            clock=found.of("gpu_sm_clock_hertz") / _positive(found.of("gpu_sm_clock_max_hertz")),
            lanes=found.of("gpu_pcie_link_width") / _positive(found.of("gpu_pcie_link_width_max")),
            storage=np.fmax(found.of("host_io_pressure_ratio"), found.of("host_cpu_iowait_ratio")) / PRESSURE_FULL,
            cpu=np.fmax(
                found.of("host_cpu_pressure_ratio") / PRESSURE_FULL,
                (found.of("host_cpu_utilization_ratio") - CPU_BUSY) / (1.0 - CPU_BUSY),
            ),
        )


def _of_hosts(found: WindowMeans, metric: str) -> Floats:
    several = len({gpu.host for gpu in found.gpus}) > 1
    return found.of(metric) if several else np.full(len(found.gpus), np.nan)


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _computing(found: WindowMeans) -> Floats:
    """A collective that spins keeps few SMs busy; kernels that work keep most of them, or the memory, busy."""
    counted = np.fmax(found.of("gpu_sm_active_ratio"), found.of("gpu_dram_active_ratio"))
    counted = np.fmax(counted, found.of("gpu_tensor_active_ratio"))
    power = found.of("gpu_power_watts") / _positive(found.of("gpu_power_limit_enforced_watts"))
    drawn = np.clip((power - IDLE_POWER) / (1.0 - IDLE_POWER), 0.0, 1.0)
    return np.where(np.isfinite(counted), counted, drawn)


def _link_bytes(found: WindowMeans) -> Floats:
    generation = found.of("gpu_pcie_link_generation")
    # The mean over a window may lie between two generations: an idle link slows down. The faster one is what it can do.
    lane = [PCIE_LANE_BYTES.get(int(np.ceil(one - 0.05)), np.nan) if np.isfinite(one) else np.nan for one in generation]
    return np.array(lane, dtype=np.float64) * _positive(found.of("gpu_pcie_link_width"))


def _nvlink(found: WindowMeans) -> Floats:
    blackwell = [any(name in gpu.model for name in BLACKWELL) for gpu in found.gpus]
    each = np.where(np.array(blackwell, dtype=np.bool_), NVLINK_BYTES_BLACKWELL, NVLINK_BYTES)
    capacity = _positive(found.of("gpu_nvlink_links_max")) * each
    return found.of("gpu_nvlink_bandwidth_bytes_per_second") / capacity


def share(values: Floats) -> float:
    """Mean over the GPUs, kept within 0 to 1; 0 where nobody knows."""
    found = mean(values)
    return min(max(found, 0.0), 1.0) if np.isfinite(found) else 0.0


# Names of the stages in English and Chinese, and what usually helps.

STAGES = {
    DiagnosisVerdict.STORAGE: ("reading from storage", "从存储读取数据"),
    DiagnosisVerdict.CPU: ("the node's CPUs, which prepare its input", "准备输入数据的 CPU"),
    DiagnosisVerdict.HOST_TO_DEVICE: ("copies from the host to the GPU", "从主机到 GPU 的拷贝"),
    DiagnosisVerdict.DEVICE: ("the GPUs' own work", "GPU 自身的计算"),
    DiagnosisVerdict.BETWEEN_GPUS: ("communication between the GPUs", "GPU 之间的通信"),
    DiagnosisVerdict.NETWORK: ("the network between its hosts", "主机之间的网络"),
    DiagnosisVerdict.DEVICE_TO_HOST: ("copies from the GPU to the host", "从 GPU 到主机的拷贝"),
}

POD_LEAK = "restart the pod when it can be spared; look for what it keeps from one request or step to the next"
"""Remedy of a leak where pods run."""
REMEDIES = {
    DiagnosisVerdict.STORAGE: "cache or stage the data on local disks, read larger files in order, prefetch more",
    DiagnosisVerdict.CPU: (
        "give the job more data-loader workers or CPUs, or move the preparation to the GPU or before the job"
    ),
    DiagnosisVerdict.HOST_TO_DEVICE: (
        "pin host memory, overlap copies with kernels, send smaller types, check the link's width"
    ),
    DiagnosisVerdict.DEVICE: "nothing to mend around the GPUs: more or faster GPUs, or cheaper kernels, make it faster",
    DiagnosisVerdict.BETWEEN_GPUS: (
        "overlap communication with work, raise the work per step, check links and placement"
    ),
    DiagnosisVerdict.NETWORK: (
        "look at ports that are down, errors and resends, place the job behind fewer switches, overlap communication"
    ),
    DiagnosisVerdict.DEVICE_TO_HOST: "write checkpoints and outputs asynchronously, keep results on the GPU, send less",
    DiagnosisVerdict.LEAK: "restart the job at its next checkpoint; look for tensors that are kept from step to step",
    DiagnosisVerdict.ORPHAN: "end the process that no longer shows, or reset the GPU once it is drained",
    DiagnosisVerdict.HELD_IDLE: "ask its owner to release it, or end the job by the site's policy",
    DiagnosisVerdict.STRANDED: "move the small jobs of the node together, so that whole nodes become free",
    DiagnosisVerdict.FLOOD: "limit the rate per client at the gateway, or scale the servers out",
    DiagnosisVerdict.LONG_REQUESTS: "bound output length and time per request, or give such work a queue of its own",
}
