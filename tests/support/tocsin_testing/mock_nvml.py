"""A mock NVML: builds the C library of ``tests/support/mock_nvml``, writes its script, and loads it.

In this process, through pynvml and ctypes::

    fleet = MockFleet(tmp_path, [h100(0), h100(1)])
    with fleet.loaded():
        source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
        fleet.gpus[1].lose()
        fleet.apply()

In another process: ``subprocess.run(..., env=os.environ | fleet.environment())``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

import pynvml

from tocsin_testing.needs import program

SOURCES = Path(__file__).parents[1] / "mock_nvml"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fPIC", "-DNVML_NO_UNVERSIONED_FUNC_DEFS")
Number = int | float | str
"""A number of the script; as text also ``?`` (all ones), ``100+5`` (grows by 5 an answer), ``40~3`` (up and down)."""

NONE = 0xFFFF_FFFF
"""No MIG instance: the whole GPU."""

_HEADER = struct.Struct("<8sQ6I")
_FUNCTION = struct.Struct("<64s34I")
_NO_GPU, _BAD_HANDLE = 32, 33


@functools.cache
def build(without: tuple[str, ...] = ()) -> Path:
    """The folder with ``libnvidia-ml.so.1``; functions named in `without` are left out, as in an older driver.

    Compiled once and kept in the folder for temporary files under a name made of the sources' content.
    """
    compiler = program("cc", "gcc")
    include = nvml_header().parent
    sources = [*sorted(SOURCES.glob("*.[ch]")), SOURCES / "functions.def", nvml_header()]
    digest = hashlib.sha256(repr((FLAGS, without)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"tocsin-mock-nvml-{os.getuid()}-{digest.hexdigest()[:16]}"
    if not (folder / "libnvidia-ml.so.1").exists():
        _compile(compiler, include, without, folder)
    return folder


def nvml_header() -> Path:
    """NVIDIA's public header, from the package nvidia-nvml-dev."""
    for file in distribution("nvidia-nvml-dev").files or ():
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise FileNotFoundError("the package nvidia-nvml-dev has no nvml.h")


def _compile(compiler: str, include: Path, without: Sequence[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tocsin-mock-nvml-") as made:
        exports = Path(made, "exports.map")
        hidden = "".join(f" {name};" for name in without)
        exports.write_text(f"{{ global: nvml*; mock_nvml_use; local:{hidden} *; }};\n")
        library = Path(made, "libnvidia-ml.so.1")
        sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        command = [compiler, "-shared", *FLAGS, "-Werror", "-isystem", str(include), *sources, "-pthread"]
        command += [f"-Wl,--version-script={exports}", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        # Two test processes may compile at once: whoever comes last replaces the same file.
        folder.mkdir(exist_ok=True)
        shutil.copy(library, folder / f"{os.getpid()}.so")
        (folder / f"{os.getpid()}.so").rename(folder / "libnvidia-ml.so.1")


@dataclass
class MockPart:
    """A GPU, one of its MIG devices, or what belongs to none: answers by function and arguments, and trouble.

    Changes count from the next `MockFleet.apply` on.
    """

    answers: dict[tuple[str, ...], str] = field(default_factory=dict)
    trouble: dict[tuple[str, str], str] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)

    def set(self, function: str, *arguments: int, to: Number | Sequence[Number]) -> None:
        """Answer a call by numbers, or by a text."""
        self.answers[function, *map(str, arguments)] = _words(to)

    def refuse(self, function: str, *arguments: int, code: str) -> None:
        """Fail a call with these arguments, by a name of ``nvmlReturn_t`` without ``NVML_ERROR_``."""
        self.answers[function, *map(str, arguments)] = f"!{code}"

    def field(self, number: int, value: Number | None, kind: str = "ull", scope: int | None = None) -> None:
        """Answer a field value; None leaves the field unsupported. `kind`: double uint ulong ull sll int ushort."""
        key = ("field", str(number)) if scope is None else ("field", str(number), str(scope))
        if value is None:
            self.answers.pop(key, None)
        else:
            self.answers[key] = f"{kind} {value}"

    def refuse_field(self, number: int, code: str, scope: int | None = None) -> None:
        """Fail one entry of a batch of field values."""
        key = ("field", str(number)) if scope is None else ("field", str(number), str(scope))
        self.answers[key] = f"!{code}"

    def forget(self, function: str, *arguments: int) -> None:
        """Leave a call without answer: "not supported"."""
        del self.answers[function, *map(str, arguments)]

    def fail(self, function: str, code: str, times: int | None = None) -> None:
        """Fail a function whatever its arguments, ``*`` all of them; `times` bounds how often."""
        self.trouble["error", function] = code if times is None else f"{code} {times}"

    def hang(self, function: str = "*") -> None:
        """Block callers until the trouble is gone."""
        self.trouble["hang", function] = ""

    def ignore(self, setter: str) -> None:
        """Let a setter say yes and do nothing."""
        self.trouble["ignore", setter] = ""

    def delay(self, function: str, microseconds: int) -> None:
        """Let a function take its time."""
        self.trouble["delay", function] = str(microseconds)

    def lose(self) -> None:
        """The GPU fell off the bus."""
        self.trouble["error", "*"] = "GPU_IS_LOST"

    def heal(self) -> None:
        """End all trouble."""
        self.trouble.clear()

    def process(self, pid: int, used: int | None, kind: str = "compute", gi: int = NONE, ci: int = NONE) -> None:
        """A process; `used` is bytes, None where the driver does not know."""
        self.processes.append(f"process {kind} {pid} {'?' if used is None else used} {gi} {ci}")

    def usage(self, pid: int, at: int, sm: int, memory: int, encoder: int = 0, decoder: int = 0) -> None:
        """A sample of ``nvmlDeviceGetProcessUtilization``."""
        self.processes.append(f"usage {pid} {at} {sm} {memory} {encoder} {decoder}")

    def burst(self, times: int) -> None:
        """For the next `times` times a list of processes has grown beyond the room that the caller made for it."""
        self.trouble["burst", str(times)] = ""

    def lines(self) -> Iterator[str]:
        """The part's lines of the script."""
        for (word, function), detail in self.trouble.items():
            yield f"{word} {function} {detail}".rstrip()
        yield from self.processes
        for key, answer in self.answers.items():
            yield f"{' '.join(key)} : {answer}"


@dataclass
class MockGpu(MockPart):
    """A GPU, `migs` its MIG devices by index."""

    migs: dict[int, MockPart] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """The scripted UUID."""
        return self.answers[("nvmlDeviceGetUUID",)]


def _words(value: Number | Sequence[Number]) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    return " ".join(map(str, value))


class MockFleet:
    """A node of GPUs for the mock. `gpus` is by number; `system` is what belongs to no GPU.

    The script lies in `folder`; `apply` writes it anew, and every process that has it loaded follows at its next call.
    """

    def __init__(self, folder: Path, gpus: Sequence[MockGpu]) -> None:
        self.script = folder / "nvml.script"
        self.gpus: dict[int, MockGpu] = dict(enumerate(gpus))
        self.system = MockPart()
        self.system.set("nvmlSystemGetDriverVersion", to="580.105.08")
        self.system.set("nvmlSystemGetNVMLVersion", to="13.580.105.08")
        self.system.set("nvmlSystemGetCudaDriverVersion", to=13000)
        self.system.set("nvmlSystemGetCudaDriverVersion_v2", to=13000)
        self._epoch = 1
        self._events: list[str] = []
        self._generation = 0
        self.apply()

    def apply(self) -> None:
        """Make the world what the objects say."""
        lines = [f"epoch {self._epoch}", *self.system.lines()]
        for number, gpu in self.gpus.items():
            lines += [f"gpu {number}", *gpu.lines()]
            for index, mig in gpu.migs.items():
                lines += [f"mig {index}", *mig.lines()]
        written = self.script.with_suffix(".new")
        written.write_text("\n".join([*lines, *self._events]) + "\n")
        written.rename(self.script)
        self._generation += 1
        with self._control() as control:
            struct.pack_into("<Q", control, 8, self._generation)

    def reload(self) -> None:
        """The driver was reloaded: all handles are void and every call but opening says "uninitialized"."""
        self._epoch += 1
        self.apply()

    def event(self, gpu: int, data: int, kind: int = 8, gi: int = NONE, ci: int = NONE) -> None:
        """An event for the sets that watch the GPU, XID `data` by default; applied at once."""
        self.add_event(gpu, data, kind, gi, ci)
        self.apply()

    def add_event(self, gpu: int, data: int, kind: int = 8, gi: int = NONE, ci: int = NONE) -> None:
        """An event that comes with the next `apply`."""
        self._events.append(f"event {gpu} {kind} {data} {gi} {ci}")

    def heal(self) -> None:
        """End all trouble everywhere, so that whatever hangs goes on."""
        for part in (self.system, *self.gpus.values(), *(m for gpu in self.gpus.values() for m in gpu.migs.values())):
            part.heal()
        self.apply()

    def environment(self, without: tuple[str, ...] = ()) -> dict[str, str]:
        """Variables with which another process loads the mock as the driver's library, and opens no hook socket."""
        mock = {"TOCSIN_MOCK_NVML": str(self.script), "LD_LIBRARY_PATH": str(build(without))}
        return mock | {"TOCSIN_AGENT__HOOK_SOCKET": ""}

    @contextmanager
    def loaded(self, without: tuple[str, ...] = ()) -> Iterator[MockFleet]:
        """Make pynvml of this process use the mock; at the end all trouble is over and pynvml as it was."""
        library = ctypes.CDLL(str(build(without) / "libnvidia-ml.so.1"))
        library.mock_nvml_use(str(self.script).encode())
        before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml._nvmlLib_refcount
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = library, 0
        pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            yield self
        finally:
            self.heal()
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml.nvmlLib, kept, pynvml._nvmlLib_refcount = before
            pynvml._nvmlGetFunctionPointer_cache.update(kept)

    def calls(self, function: str, gpu: int | None = None) -> int:
        """How often a function was called, by all processes: for one GPU, or in all."""
        counts = self._counts().get(function, (0,) * 34)
        return sum(counts) if gpu is None else counts[gpu]

    def all_calls(self) -> dict[str, int]:
        """Calls by function, those that were made at all."""
        return {name: sum(counts) for name, counts in self._counts().items() if any(counts)}

    def forget_calls(self) -> None:
        """Count from zero."""
        with self._control() as control:
            for start in range(_HEADER.size, len(control) - _FUNCTION.size + 1, _FUNCTION.size):
                control[start + 64 : start + _FUNCTION.size] = bytes(_FUNCTION.size - 64)

    @property
    def waiting(self) -> int:
        """How many callers hang at this instant."""
        return int(self._header()[2])

    @property
    def stale_handles(self) -> int:
        """Uses of a handle from before a reload: the real library may crash on one."""
        return int(self._header()[3])

    @property
    def opens(self) -> int:
        """Successful openings of the library, by all processes."""
        return int(self._header()[4])

    @property
    def closes(self) -> int:
        """Successful closings."""
        return int(self._header()[5])

    def _header(self) -> tuple[int, ...]:
        with self._control() as control:
            return _HEADER.unpack_from(control)

    def _counts(self) -> dict[str, tuple[int, ...]]:
        counts: dict[str, tuple[int, ...]] = {}
        with self._control() as control:
            for start in range(_HEADER.size, len(control) - _FUNCTION.size + 1, _FUNCTION.size):
                name, *numbers = _FUNCTION.unpack_from(control, start)
                counts[name.rstrip(b"\0").decode()] = tuple(numbers)
        return counts

    @contextmanager
    def _control(self) -> Iterator[mmap.mmap]:
        path = Path(f"{self.script}.control")
        with path.open("r+b" if path.exists() else "w+b") as file:
            if path.stat().st_size < _HEADER.size:
                file.truncate(_HEADER.size)
            with mmap.mmap(file.fileno(), 0) as control:
                yield control
