"""How broken up memory, MIG slices and free GPUs are: pure functions, all 0 (whole) to 1 (useless).

Three different things share the word: holes inside one process's caching allocator, MIG instances placed so that larger
ones no longer fit, and free GPUs scattered over nodes so that a gang does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

Placement = tuple[str, int]
"""Profile name in the template and first memory slice."""


def cache_slack(allocated: float, reserved: float) -> float:
    """(`reserved` - `allocated`) / `reserved`, both in bytes; 0 where nothing is reserved.

    The share of what an allocator holds from the driver that no tensor holds: used to the driver, free to the process.
    Raises ValueError for a negative size or more allocated than reserved.
    """
    if not 0 <= allocated <= reserved:
        raise ValueError(f"allocated memory {allocated} must lie between 0 and reserved memory {reserved}")
    return (reserved - allocated) / reserved if reserved > 0 else 0.0


def split_fragmentation(inactive_split: float, reserved: float) -> float:
    """`inactive_split` / `reserved`, both in bytes; 0 where nothing is reserved.

    The share that is free but shares a segment with memory in use, so that emptying the cache does not return it.
    Raises ValueError for a negative size or more in splits than reserved.
    """
    if not 0 <= inactive_split <= reserved:
        raise ValueError(f"memory in inactive splits {inactive_split} must lie between 0 and reserved {reserved}")
    return inactive_split / reserved if reserved > 0 else 0.0


def internal_fragmentation(requested: float, allocated: float) -> float:
    """(`allocated` - `requested`) / `allocated`, both in bytes; 0 where nothing is allocated.

    The share of blocks in use that rounding added. Raises ValueError for a negative size or more requested than
    allocated.
    """
    if not 0 <= requested <= allocated:
        raise ValueError(f"requested memory {requested} must lie between 0 and allocated memory {allocated}")
    return (allocated - requested) / allocated if allocated > 0 else 0.0


def external_fragmentation(largest_free: float, total_free: float) -> float:
    """1 - `largest_free` / `total_free`, both in bytes; 0 where nothing is free.

    The share of a process's free memory that one allocation cannot have. Raises ValueError for a negative size or a
    largest block above the total.
    """
    if largest_free < 0 or total_free < largest_free:
        raise ValueError(f"largest free block {largest_free} must lie between 0 and all free memory {total_free}")
    return 1.0 - largest_free / total_free if total_free > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of MIG instance: what it takes of the GPU, where it may begin, and how many a GPU can have at once.

    The count binds where instances share what a GPU has once, such as the media engines of ``+me``.
    """

    name: str
    memory_slices: int
    compute_slices: int
    starts: tuple[int, ...]
    max_count: int


@dataclass(frozen=True, slots=True)
class MigTemplate:
    """The slices of a GPU and the profiles that it offers, by name."""

    memory_slices: int
    compute_slices: int
    profiles: Mapping[str, MigProfile]


def _template(memory: int, compute: int, *profiles: MigProfile) -> MigTemplate:
    return MigTemplate(memory, compute, {profile.name: profile for profile in profiles})


SEVEN_SLICE = _template(
    8,
    7,
    MigProfile("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    MigProfile("1g+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    MigProfile("1g.double", 2, 1, (0, 2, 4, 6), 4),
    MigProfile("2g", 2, 2, (0, 2, 4), 3),
    MigProfile("3g", 4, 3, (0, 4), 2),
    MigProfile("4g", 4, 4, (0,), 1),
    MigProfile("7g", 8, 7, (0,), 1),
)
"""A100 and H100, as `nvidia-smi mig -lgipp` lists them; later data-centre GPUs are taken to be the same."""

FOUR_SLICE = _template(
    4,
    4,
    MigProfile("1g", 1, 1, (0, 1, 2, 3), 4),
    MigProfile("1g+me", 1, 1, (0, 1, 2, 3), 1),
    MigProfile("2g", 2, 2, (0, 2), 2),
    MigProfile("2g+me", 2, 2, (0, 2), 1),
    MigProfile("4g", 4, 4, (0,), 1),
)
"""A30."""


def free_slices(layout: Iterable[Placement], template: MigTemplate = SEVEN_SLICE) -> tuple[frozenset[int], int]:
    """Free memory slices, and how many compute slices are free, beside the instances of `layout`.

    Raises ValueError where two instances overlap, a start is not allowed, or the compute slices or what else a profile
    takes do not suffice.
    """
    free = set(range(template.memory_slices))
    compute = template.compute_slices
    counts: Counter[str] = Counter()
    for name, start in layout:
        profile = template.profiles.get(name)
        if profile is None or start not in profile.starts:
            raise ValueError(f"{name}@{start} is no placement of this GPU")
        wanted = set(range(start, start + profile.memory_slices))
        if not wanted <= free:
            raise ValueError(f"{name}@{start} overlaps another instance")
        free -= wanted
        compute -= profile.compute_slices
        counts[name] += 1
        if counts[name] > profile.max_count:
            raise ValueError(f"a GPU has at most {profile.max_count} of {name}")
    if compute < 0:
        raise ValueError("the instances need more compute slices than the GPU has")
    return frozenset(free), compute


def _left(profile: MigProfile, layout: Sequence[Placement]) -> int:
    return profile.max_count - sum(name == profile.name for name, _ in layout)


def _feasible(profile: MigProfile, free: frozenset[int], compute: int) -> int:
    placed = 0
    next_start = 0
    for start in profile.starts:
        if start >= next_start and free.issuperset(range(start, start + profile.memory_slices)):
            placed += 1
            next_start = start + profile.memory_slices
    return min(placed, compute // profile.compute_slices)


def mig_capacity(layout: Sequence[Placement], template: MigTemplate = SEVEN_SLICE) -> dict[str, int]:
    """For each profile, how many instances of it alone can still be created: NVML's remaining capacity.

    Instances of one profile are equally long, so that taking each earliest free start gives the largest number.
    """
    free, compute = free_slices(layout, template)
    return {
        name: min(_feasible(profile, free, compute), _left(profile, layout))
        for name, profile in template.profiles.items()
    }


def mig_ideal(layout: Sequence[Placement], template: MigTemplate = SEVEN_SLICE) -> dict[str, int]:
    """For each profile, how many would fit if the free slices lay together."""
    free, compute = free_slices(layout, template)
    return {
        name: min(len(free) // profile.memory_slices, compute // profile.compute_slices, _left(profile, layout))
        for name, profile in template.profiles.items()
    }


def mig_fragmentation_by_profile(layout: Sequence[Placement], template: MigTemplate = SEVEN_SLICE) -> dict[str, float]:
    """For each profile, 1 - feasible / ideal; 0 where even an ideal layout would take none."""
    ideal = mig_ideal(layout, template)
    feasible = mig_capacity(layout, template)
    return {name: 1.0 - feasible[name] / count if count > 0 else 0.0 for name, count in ideal.items()}


def mig_fragmentation(
    layout: Sequence[Placement], demand: Mapping[str, float], template: MigTemplate = SEVEN_SLICE
) -> float:
    """Index of one GPU: the mean over profiles weighted by `demand`, each profile's share of the requests.

    `demand` need not sum to 1; profiles that it does not name weigh nothing. 0 where it weighs nothing at all.
    """
    by_profile = mig_fragmentation_by_profile(layout, template)
    total = sum(demand.get(name, 0.0) for name in by_profile)
    if total <= 0:
        return 0.0
    return min(1.0, sum(demand.get(name, 0.0) * value for name, value in by_profile.items()) / total)


def mig_fleet_fragmentation(
    layouts: Iterable[Sequence[Placement]], demand: Mapping[str, float], template: MigTemplate = SEVEN_SLICE
) -> float:
    """Index of a fleet: the mean over GPUs weighted by their free memory slices; 0 where no slice is free."""
    weighted = free = 0.0
    for layout in layouts:
        slices = len(free_slices(layout, template)[0])
        weighted += slices * mig_fragmentation(layout, demand, template)
        free += slices
    return weighted / free if free > 0 else 0.0


def repack(
    profiles: Iterable[str], demand: Mapping[str, float], template: MigTemplate = SEVEN_SLICE
) -> tuple[Placement, ...]:
    """The same instances where they hinder least: largest first, each at the start that leaves the smallest index.

    Raises ValueError where they do not fit in this order.
    """
    known = template.profiles
    layout: tuple[Placement, ...] = ()
    for name in sorted(profiles, key=lambda p: (-known[p].memory_slices, -known[p].compute_slices, p)):
        choices = [(*layout, (name, start)) for start in known[name].starts]
        valid = [choice for choice in choices if fits_together(choice, template)]
        if not valid:
            raise ValueError(f"{name} does not fit beside {layout}")
        layout = min(valid, key=lambda choice: (mig_fragmentation(choice, demand, template), -choice[-1][1]))
    return layout


def fits_together(layout: Iterable[Placement], template: MigTemplate) -> bool:
    """Whether a GPU can have all instances of `layout` at once."""
    try:
        free_slices(layout, template)
    except ValueError:
        return False
    return True


def gang_fragmentation(free_by_node: Iterable[int], gang: int) -> float:
    """1 - sum(floor(free / gang) * gang) / sum(free): free GPUs in islands too small for a gang of `gang` GPUs.

    `free_by_node` counts the free GPUs of each node or NVLink domain. 0 where no GPU is free. Raises ValueError for a
    gang below 1.
    """
    if gang < 1:
        raise ValueError(f"a gang has at least one GPU, not {gang}")
    counts = list(free_by_node)
    total = sum(counts)
    return 1.0 - sum(count // gang * gang for count in counts) / total if total > 0 else 0.0


def largest_job_fragmentation(free_by_domain: Iterable[int]) -> float:
    """1 - the largest count of free GPUs in one fabric domain over all free GPUs; 0 where no GPU is free."""
    counts = list(free_by_domain)
    total = sum(counts)
    return 1.0 - max(counts) / total if total > 0 else 0.0


# Free GPUs that the jobs which come cannot use: expected fragmentation of a fleet (FGD), what no job can use, and what
# is stranded. FGD is the measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
# Fragmentation Gradient Descent", USENIX ATC 2023: what of a node's free GPUs a task of the mix cannot use, averaged
# over the mix.

WHOLE_NODE = 8
"""GPUs of the job that stranded ones are too few for: a node of the usual size, one NVLink domain."""


def stranded(free: int, gpus: int) -> int:
    """Of the `free` of a node's `gpus`, those that are stranded: all where they are too few for a job of a whole node.

    A node is whole with `WHOLE_NODE` GPUs, or with as many as it has where that is less. It is asked wherever stranded
    GPUs are counted: for usage, cost, fragmentation, plans and diagnoses.
    """
    return free if free < min(WHOLE_NODE, gpus) else 0


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
class FreeNode:
    """A node: what is unallocated of each of its GPUs (0 to 1 each), its free CPUs (None: unknown, taken as enough).

    `usable` is false where no task may start, such as on a cordoned node. `others` are GPUs of the node beside those of
    `free`, such as those in MIG mode: a job of a whole node would need them too.
    """

    free: tuple[float, ...]
    cpus: float | None = None
    usable: bool = True
    others: int = 0

    def fits(self, task: TaskClass) -> bool:
        if not self.usable or (self.cpus is not None and self.cpus < task.cpus - _EPSILON):
            return False
        return sum(part >= task.each - _EPSILON for part in self.free) >= max(1.0, task.gpus)


@dataclass(frozen=True, slots=True)
class FleetFragmentation:
    """In GPUs: `free` ones, what of them the next task is expected to be unable to use, what no task can use, and
    what is `stranded`, whatever the tasks are."""

    free: float
    fragmented: float
    unusable: float
    stranded: float

    @property
    def ratio(self) -> float:
        """`fragmented` / `free`; 0 where nothing is free."""
        return self.fragmented / self.free if self.free > 0 else 0.0


def unusable(node: FreeNode, task: TaskClass) -> float:
    """F_n(m): GPUs of `node` that are free and no use to `task`.

    All of them where it cannot run here, or needs no GPU; else what is left of GPUs with less than it takes of each.
    """
    if task.gpus <= 0 or not node.fits(task):
        return sum(node.free)
    return sum(part for part in node.free if part < task.each - _EPSILON)


def expected_unusable(node: FreeNode, mix: Sequence[TaskClass]) -> float:
    """F_n: the mean of `unusable` over the mix, weighted by share; 0 for a mix that weighs nothing."""
    weight = sum(task.share for task in mix)
    return sum(task.share * unusable(node, task) for task in mix) / weight if weight > 0 else 0.0


def unusable_for_all(node: FreeNode, mix: Sequence[TaskClass]) -> float:
    """GPUs of `node` that are free and no use to any task of the mix; 0 for a mix that weighs nothing.

    Those of a node that lacks CPUs for every task and those of an unusable node are among them.
    """
    wanted = [task for task in mix if task.share > 0]
    if not wanted:
        return 0.0
    able = [task.each for task in wanted if task.gpus > 0 and node.fits(task)]
    least = min(able, default=float("inf"))
    return sum(part for part in node.free if part < least - _EPSILON)


def fleet_fragmentation(nodes: Iterable[FreeNode], mix: Sequence[TaskClass]) -> FleetFragmentation:
    """F, the sum of F_n over `nodes`, with what is free, what no task can use, and what is stranded of whole GPUs."""
    free = fragmented = lost = 0.0
    apart = 0
    for node in nodes:
        free += sum(node.free)
        fragmented += expected_unusable(node, mix)
        lost += unusable_for_all(node, mix)
        apart += stranded(sum(part >= 1.0 - _EPSILON for part in node.free), len(node.free) + node.others)
    return FleetFragmentation(free, fragmented, lost, float(apart))


def gain_of_placing(node: FreeNode, task: TaskClass, mix: Sequence[TaskClass]) -> float:
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
    return expected_unusable(node, mix) - expected_unusable(replace(node, free=tuple(left), cpus=cpus), mix)


def mix_of_sizes(sizes: Iterable[int]) -> tuple[TaskClass, ...]:
    """The mix that running jobs show, of how many GPUs each has on one node; smallest first."""
    counts = Counter(size for size in sizes if size > 0)
    total = counts.total()
    return tuple(TaskClass(float(size), count / total) for size, count in sorted(counts.items()))
