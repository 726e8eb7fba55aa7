"""Opening the library and its GPUs, each on a thread that may hang, and what has come of that so far.

One GPU that hangs while it is opened must cost the others nothing, and what takes longer than anybody waits for must
still count when it comes: without persistence mode the driver wakes every GPU first, which can take a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.collector.nvml.device import DriverGpu, NvmlDevice, PlausibleCounts, driver_gpus, name_closed, open_device
from tocsin.collector.nvml.events import XidWatch
from tocsin.collector.nvml.library import LIBRARY_CODES, Code, Nvml, NvmlFailure, attempt, text
from tocsin.collector.source import NodeIdentity
from tocsin.domain.reading import UNKNOWN_GPU, Gpu
from tocsin.telemetry.log import logger

_log = logger("nvml")

_NOT_OURS = frozenset({Code.NO_PERMISSION})
"""Why a GPU may not open although nothing is wrong with it: it is somebody else's."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one enumeration found.

    `count` GPUs are there by the driver's count; `devices` opened. `left` are those of the enumeration before, and of
    the start, that are still counted but give no handle; by `waiting`, a part of them, nothing is known yet: the call
    that opens them is out, or came back with a time-out. `unopened` of these, by UUID their index, have no handle of
    this opening. `present` are the PCI addresses of the GPUs that the kernel's driver holds, by its files.
    """

    count: int
    devices: tuple[NvmlDevice, ...]
    left: Mapping[str, NvmlDevice]
    waiting: frozenset[str]
    unopened: Mapping[str, int]
    present: frozenset[str]
    driver: str


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """What is known when GPUs are listed: those of the enumeration before by UUID, and in which of them calls hang.

    `same_opening` is whether their handles are still good.
    """

    devices: Mapping[str, NvmlDevice]
    hanging: Collection[str]
    same_opening: bool


@dataclass(frozen=True, slots=True)
class _LibraryAnswer:
    """What the library as a whole said; of a `doubtful` count all that is known is that it is no more than `count`."""

    count: int
    doubtful: bool
    present: frozenset[str]
    driver: str


class LibraryOpening:
    """One listing of the GPUs, with the opening of the library before it unless `known` is of the same opening.

    `ask_library` and the tasks of `gpu_tasks` make calls into the driver: they run on threads that can be left behind,
    and put what they find here, early or late. The rest is for the thread of readings and calls nothing. One that was
    superseded takes nothing more: its handles may be void.
    """

    def __init__(
        self,
        library: Nvml,
        node: NodeIdentity,
        known: KnownGpus,
        driver_files: Path,
        watch: XidWatch,
        counts: PlausibleCounts,
    ) -> None:
        self._library = library
        self._node = node
        self._known = known
        self._driver_files = driver_files
        self._watch = watch
        self._counts = counts
        self._by_index = {device.gpu.index: uuid for uuid, device in known.devices.items()}
        self._answer: _LibraryAnswer | None = None
        self._failure: NvmlFailure | None = None
        self._gpus: dict[int, NvmlDevice | NvmlFailure] = {}
        self._asked: set[int] = set()
        self._files: list[DriverGpu] | None = None
        self.superseded = False
        self.begun = False
        self.changed = False

    @property
    def answered(self) -> bool:
        """Whether the library said how many GPUs there are, or that it cannot."""
        return self._answer is not None or self._failure is not None

    def check(self) -> None:
        """Raises NvmlFailure where the library itself failed."""
        if self._failure is not None:
            raise self._failure

    def supersede(self) -> None:
        """Take nothing more: another opening came after this one."""
        self.superseded = True

    def ask_library(self) -> None:
        """Open the library where that is to be done, and ask it for what it has."""
        self.begun = True
        try:
            if not self._known.same_opening:
                self._library.open()
            count, doubtful = self._counts.gpus(int(self._library.call("nvmlDeviceGetCount")))
            driver = text(attempt(self._library, "nvmlSystemGetDriverVersion"))
            self._answer = _LibraryAnswer(count, doubtful, _present(self._driver_files), driver)
        except NvmlFailure as failure:
            self._failure = failure

    def gpu_tasks(self) -> dict[str, Callable[[], None]]:
        """By key what opens each GPU that nobody has asked for yet; none of a GPU in which a call hangs."""
        if self._answer is None:
            return {}
        wanted = [index for index in range(self._answer.count) if index not in self._asked]
        keys = {index: self.key(index) for index in wanted}
        return {key: self.gpu_task(index) for index, key in keys.items() if key not in self._known.hanging}

    def key(self, index: int) -> str:
        """Under what the GPU at `index` is asked: the UUID that it had before, else its place."""
        return self._by_index.get(index) or f"GPU {index}"

    def gpu_task(self, index: int) -> Callable[[], None]:
        """What opens one GPU."""

        def task() -> None:
            self._asked.add(index)
            before = self._known.devices if self._known.same_opening else {}
            try:
                device = open_device(self._library, index, self._node, before, self._counts)
                if not self.superseded:
                    self._watch.register([device])
                    self.put(index, device)
            except NvmlFailure as failure:
                if failure.code in LIBRARY_CODES:
                    self._failure = failure
                self.put(index, failure)

        return task

    def put(self, index: int, found: NvmlDevice | NvmlFailure) -> None:
        """What is to be known of the GPU at `index` from now on."""
        before = self._gpus.get(index)
        again = isinstance(before, NvmlFailure) and isinstance(found, NvmlFailure) and before.code == found.code
        if isinstance(found, NvmlFailure) and not again and not self._is_no_gpu(found):
            _log.warning("GPU cannot be opened", index=index, problem=str(found), code=found.code)
        self._gpus[index] = found
        self.changed = True

    def wants_files(self) -> bool:
        """Whether a GPU could not be opened, so that only the driver's files can name it, which nobody has read yet."""
        if self._files is not None:
            return False
        if self._answer is None or self._answer.doubtful:
            return True
        return not self._closed().keys() <= self._by_index.keys()

    def read_files(self) -> None:
        """Read the driver's files, which may hang as well."""
        self._files = driver_gpus(self._driver_files)
        self.changed = True

    def listing(self) -> Listing:
        """What is known now."""
        self.changed = False
        gpus = dict(self._gpus)
        devices = tuple(device for _, device in sorted(gpus.items()) if isinstance(device, NvmlDevice))
        closed = self._closed()
        opened = {device.gpu.uuid for device in devices}
        # A GPU that fell off the bus keeps its place in the count but gives no handle: its UUID is known from before,
        # and the handle of before must not be used again.
        known = self._known.devices
        left = {u: d for u, d in known.items() if u not in opened and _place(d) in closed}
        taken = {_place(device) for device in left.values()}
        unknown = [index for index, why in closed.items() if index not in taken and why.code not in _NOT_OURS]
        never = self._never_opened(unknown, opened | known.keys())
        if self._answer is None and not known:
            never = self._unanswered()
        left |= never
        waiting = frozenset(u for u, d in left.items() if _hangs(closed.get(_place(d))))
        void = {u: _place(left[u]) for u in waiting if left[u].handle is None or not self._known.same_opening}
        unopened = void if self._answer is not None else {}
        answer = self._answer or _LibraryAnswer(len(left), False, frozenset(), "")
        return Listing(answer.count, devices, left, waiting, unopened, answer.present, answer.driver)

    def _closed(self) -> dict[int, NvmlFailure]:
        """Why each GPU that is not open is not; a time-out where nobody knows yet."""
        if self._answer is None:
            return {}
        hangs = NvmlFailure(Code.TIMEOUT, "a call to this GPU hangs")
        found = {index: self._gpus.get(index, hangs) for index in range(self._answer.count)}
        closed = {i: why for i, why in found.items() if isinstance(why, NvmlFailure) and not self._is_no_gpu(why)}
        if self._answer.doubtful:
            # A count that cannot be true invents no GPUs: those are there that the driver's files show.
            shown = max(len(self._files or ()), 1)
            closed = {i: w for i, w in closed.items() if i < shown or i in self._by_index or w.code != Code.TIMEOUT}
        return closed

    def _is_no_gpu(self, why: NvmlFailure) -> bool:
        """Whether `why` only says that the count was too high."""
        doubtful = self._answer is not None and self._answer.doubtful
        return doubtful and why.code not in (Code.GPU_IS_LOST, Code.TIMEOUT)

    def _never_opened(self, closed: Collection[int], named_already: Collection[str]) -> dict[str, NvmlDevice]:
        """GPUs that the driver counts but that gave no handle since the start, as devices without one."""
        named = name_closed(closed, named_already, self._files or [])
        return dict(self._placeholder(index, named.get(index)) for index in closed)

    def _unanswered(self) -> dict[str, NvmlDevice]:
        """The GPUs of a library that has not said yet what there is: those of the driver's files, else one for all."""
        if not self._files:
            return dict([self._placeholder(None, None)])
        return dict(self._placeholder(index, gpu) for index, gpu in enumerate(self._files))

    def _placeholder(self, index: int | None, gpu: DriverGpu | None) -> tuple[str, NvmlDevice]:
        place = "" if index is None else f"-{index}"
        uuid = (gpu.uuid if gpu is not None else "") or f"{UNKNOWN_GPU}{self._node.host}{place}"
        model, bus = (gpu.model, gpu.pci_bus_id) if gpu is not None else ("", "")
        named: Gpu = self._node.gpu(uuid, index=index, model=model, pci_bus_id=bus)
        return uuid, NvmlDevice(self._library, None, named, ())


def _place(device: NvmlDevice) -> int:
    """The GPU's index; -1 where it has none."""
    return -1 if device.gpu.index is None else device.gpu.index


def _hangs(why: NvmlFailure | None) -> bool:
    """Whether nothing is known of a GPU; `why` is None where the library has not said yet what there is."""
    return why is None or why.code == Code.TIMEOUT


def _present(driver_files: Path) -> frozenset[str]:
    try:
        return frozenset(folder.name for folder in driver_files.iterdir())
    except OSError:
        return frozenset()
