"""Marker files: what a limit was before it was lowered, on disk before it is lowered.

One file a GPU in a folder of the agent's. Whatever ends the process, the next one finds what is to be given back.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tocsin.domain.atomic_file import SUFFIX as UNFINISHED
from tocsin.domain.atomic_file import sync_folder, write_atomically
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import logger

_log = logger("markers")
_NAME = re.compile(r"^[A-Za-z0-9-]{1,100}$")
_SUFFIX = ".limit.json"
_EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Marker:
    """What was changed on one GPU, and by which order.

    `prior_mw` is the power limit found before the first change, None where power was not touched. `ours_mw` are the
    limits that may be in force by our doing: the last that was read back, and the one being asked for. `clocks_mhz` is
    the range that the SM clock was locked to. `boot` is the boot in which it was written: limits do not outlive one.
    """

    gpu: str
    order: str
    boot: str
    at_ms: int
    expires_ms: int
    prior_mw: int | None = None
    ours_mw: tuple[int, ...] = ()
    clocks_mhz: tuple[int, int] | None = None


class MarkerFolder:
    """The marker files in `path`, which is made where it lacks. Raises InputError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            for left in path.glob(f"*{UNFINISHED}"):
                left.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(path, error) from None

    def put(self, marker: Marker) -> None:
        """Write it, durable on return. Raises InputError where the folder takes none."""
        self._write(f"{_file_name(marker.gpu)}{_SUFFIX}", json.dumps(asdict(marker), sort_keys=True))

    def take_away(self, gpu: str) -> None:
        """Remove the marker of a GPU, durable on return. Raises OSError where the folder cannot be written."""
        (self.path / f"{_file_name(gpu)}{_SUFFIX}").unlink(missing_ok=True)
        sync_folder(self.path)

    def all(self) -> list[Marker]:
        """Every marker that can be read, by GPU; one that cannot is set aside with a line in the log."""
        found = []
        for file in sorted(self.path.glob(f"*{_SUFFIX}")):
            try:
                found.append(_parse(file.read_text()))
            except (OSError, ValueError, TypeError, KeyError) as error:
                _log.error("a marker file cannot be read: look at the GPU's limits by hand", file=str(file))
                _log.debug("its problem", error=str(error))
                file.rename(file.with_suffix(".unreadable"))
        return found

    def highest_epoch(self) -> int:
        """The highest epoch of a brain that this node has heard of; 0 before the first."""
        try:
            return int(self.epoch_file.read_text())
        except (OSError, ValueError):
            return 0

    @property
    def epoch_file(self) -> Path:
        return self.path / _EPOCH

    def remember_epoch(self, epoch: int) -> None:
        """Follow no older brain from now on, also after a restart."""
        self._write(_EPOCH, str(epoch))

    def _write(self, name: str, text: str) -> None:
        try:
            write_atomically(self.path / name, text)
        except OSError as error:
            raise _unusable(self.path, error) from None


def _unusable(path: Path, error: OSError) -> InputError:
    return InputError(
        "node.marker_folder",
        str(path),
        f"cannot be written ({error.strerror or error}), so that a limit could not be restored after a crash",
        "name a folder that the agent may write to and that outlives it",
    )


def _file_name(gpu: str) -> str:
    if not _NAME.match(gpu):
        raise InputError("gpu", gpu, "is no UUID of a GPU", "give it as nvidia-smi -L shows it")
    return gpu


def _parse(text: str) -> Marker:
    document = json.loads(text)
    if not isinstance(document, dict) or set(document) != {f.name for f in fields(Marker)}:
        raise ValueError("not the fields of a marker")
    prior_mw, clocks_mhz = document["prior_mw"], document["clocks_mhz"]
    return Marker(
        gpu=_file_name(str(document["gpu"])),
        order=str(document["order"]),
        boot=str(document["boot"]),
        at_ms=int(document["at_ms"]),
        expires_ms=int(document["expires_ms"]),
        prior_mw=None if prior_mw is None else int(prior_mw),
        ours_mw=tuple(int(value) for value in document["ours_mw"]),
        clocks_mhz=None if clocks_mhz is None else (int(clocks_mhz[0]), int(clocks_mhz[1])),
    )
