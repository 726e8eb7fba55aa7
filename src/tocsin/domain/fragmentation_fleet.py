"""Free GPUs that the jobs which come cannot use: expected fragmentation of a fleet (FGD) and stranded GPUs.

The measure is that of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023: what of a node's free GPUs a task of the mix cannot use, averaged over the mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_EPSILON = 1e-9
"""GPU shares are sums of decimal fractions; what is missing by less is not missing."""


@dataclass(frozen=True, slots=True)
class TaskClass:
    """A class of tasks: `gpus` on one node (a fraction is a part of one GPU), `cpus` with them, `share` of the mix.

    Shares need not sum to 1. Raises ValueError for a negative figure and for `gpus` above 1 that are not whole.
    """

    gpus: float
    share: float = 1.0
    cpus: float = 0.0

    def __post_init__(self) -> None:
        if min(self.gpus, self.share, self.cpus) < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ValueError(f"a task takes a part of one GPU or whole GPUs, and nothing negative: {self}")

    @property
    def each(self) -> float:
        """What it takes of each of its GPUs."""
        return min(self.gpus, 1.0)


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node: what is unallocated of each of its GPUs (0 to 1 each), its free CPUs (None: unknown, taken as enough).

    `usable` is false where no task may start, such as on a cordoned node.
    """

    free: tuple[float, ...]
    cpus: float | None = None
    usable: bool = True

    def fits(self, task: TaskClass) -> bool:
        if not self.usable or (self.cpus is not None and self.cpus < task.cpus - _EPSILON):
            return False
        return sum(part >= task.each - _EPSILON for part in self.free) >= max(1.0, task.gpus)


@dataclass(frozen=True, slots=True)
class FleetFragmentation:
    """In GPUs: `free` ones, what of them the next task is expected to be unable to use, and what no task can use."""

    free: float
    fragmented: float
    stranded: float

    @property
    def ratio(self) -> float:
        """`fragmented` / `free`; 0 where nothing is free."""
        return self.fragmented / self.free if self.free > 0 else 0.0


def unusable(node: FleetNode, task: TaskClass) -> float:
    """F_n(m): GPUs of `node` that are free and no use to `task`.

    All of them where it cannot run here, or needs no GPU; else what is left of GPUs with less than it takes of each.
    """
    if task.gpus <= 0 or not node.fits(task):
        return sum(node.free)
    return sum(part for part in node.free if part < task.each - _EPSILON)


def expected_unusable(node: FleetNode, mix: Sequence[TaskClass]) -> float:
    """F_n: the mean of `unusable` over the mix, weighted by share; 0 for a mix that weighs nothing."""
    weight = sum(task.share for task in mix)
    return sum(task.share * unusable(node, task) for task in mix) / weight if weight > 0 else 0.0


def stranded(node: FleetNode, mix: Sequence[TaskClass]) -> float:
    """GPUs of `node` that are free and no use to any task of the mix; 0 for a mix that weighs nothing.

    Those of a node that lacks CPUs for every task and those of an unusable node are among them.
    """
    wanted = [task for task in mix if task.share > 0]
    if not wanted:
        return 0.0
    able = [task.each for task in wanted if task.gpus > 0 and node.fits(task)]
    least = min(able, default=float("inf"))
    return sum(part for part in node.free if part < least - _EPSILON)


def fleet_fragmentation(nodes: Iterable[FleetNode], mix: Sequence[TaskClass]) -> FleetFragmentation:
    """F, the sum of F_n over `nodes`, with what is free and what is stranded."""
    free = fragmented = lost = 0.0
    for node in nodes:
        free += sum(node.free)
        fragmented += expected_unusable(node, mix)
        lost += stranded(node, mix)
    return FleetFragmentation(free, fragmented, lost)


def gain_of_placing(node: FleetNode, task: TaskClass, mix: Sequence[TaskClass]) -> float:
    """F_n before less F_n after `task` has started on `node`, in GPUs: the larger, the better a place.

    Of a partly used node the fullest GPUs that suffice are taken. Raises ValueError where the task does not fit.
    """
    if not node.fits(task):
        raise ValueError(f"{task} does not fit on {node}")
    left = list(node.free)
    for _ in range(max(1, int(task.gpus)) if task.gpus > 0 else 0):
        place = min((i for i, part in enumerate(left) if part >= task.each - _EPSILON), key=lambda i: left[i])
        left[place] = max(0.0, left[place] - task.each)
    cpus = None if node.cpus is None else node.cpus - task.cpus
    return expected_unusable(node, mix) - expected_unusable(FleetNode(tuple(left), cpus, node.usable), mix)


def mix_of_sizes(sizes: Iterable[int]) -> tuple[TaskClass, ...]:
    """The mix that running jobs show, of how many GPUs each has on one node; smallest first."""
    counts = Counter(size for size in sizes if size > 0)
    total = counts.total()
    return tuple(TaskClass(float(size), count / total) for size, count in sorted(counts.items()))
