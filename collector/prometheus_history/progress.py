"""History written to a file that a replay lives through again: dcgm-exporter's text, each line with its instant.

While it grows the file is called ``NAME.part``, and ``NAME.part.json`` beside it says how far it is good. A run that
was cut off is taken up from there; what was written after the last good mark is cut away.
"""

from __future__ import annotations

import bz2
import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from tocsin.collector.prometheus_history.history import Run, Window
from tocsin.domain.clock import to_iso
from tocsin.domain.errors import InputError


class _Packer(Protocol):
    """A compressed stream that grows."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _packer(path: Path) -> _Packer | None:
    """A stream of its own for each window, so that a file can be cut after any; None where `path` is plain.

    gzip at its fastest: history repeats names and labels, which bz2 takes some fifty times as long to pack.
    """
    if path.suffix == ".gz":
        return zlib.compressobj(1, zlib.DEFLATED, 31)
    return bz2.BZ2Compressor() if path.suffix == ".bz2" else None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def lines_of(run: Run) -> str:
    """The samples of one series as text, a line each."""
    labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sorted(run.labels.items()) if value)
    start = f"{run.head.name}{{{labels}}} "
    pairs = zip(run.raw.tolist(), run.at_ms.tolist(), strict=True)
    return "".join([f"{start}{raw!r} {at_ms}\n" for raw, at_ms in pairs])


class HistoryFile:
    """A recording that grows by whole windows. A name that ends in ``.gz`` or ``.bz2`` is packed.

    `origin` names what is imported; a rest that another import left behind is refused. Raises InputError where the
    file exists already or cannot be written.
    """

    def __init__(self, path: Path, origin: Mapping[str, str]) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._state = path.with_name(path.name + ".part.json")
        self._origin = dict(origin)
        if path.exists():
            raise InputError("--to", str(path), "exists", "name another file, or remove this one first")
        self._resume = self._rest()
        self._kept = self._resume is not None
        try:
            self._file: IO[bytes] = self._part.open("r+b" if self._resume else "wb")
            size = self._resume[1] if self._resume else 0
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            raise _unwritable(path, error) from None

    @property
    def resume_ms(self) -> int | None:
        """The end of what a run before left; None where there is none."""
        return self._resume[0] if self._resume else None

    def add(self, window: Window) -> None:
        """Append one window; durable on return."""
        pack = _packer(self.path)
        try:
            self._put(pack, f"# until {to_iso(window.until_ms)}\n")
            for run in window.runs:
                self._put(pack, lines_of(run))
            if pack is not None:
                self._file.write(pack.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._mark(window.until_ms)
            self._kept = True
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def finish(self) -> None:
        """Give the file its name: everything is in it."""
        self._file.close()
        self._part.replace(self.path)
        self._kept = True
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave what is there for a later run, and nothing where no window was written. Safe to repeat, and after
        `finish`."""
        self._file.close()
        if not self._kept:
            self._part.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)

    def _put(self, pack: _Packer | None, text: str) -> None:
        data = text.encode()
        self._file.write(data if pack is None else pack.compress(data))

    def _mark(self, until_ms: int) -> None:
        state = {"origin": self._origin, "until_ms": until_ms, "bytes": self._file.tell()}
        fresh = self._state.with_name(self._state.name + ".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self._state)

    def _rest(self) -> tuple[int, int] | None:
        """How far a run before came: instant and bytes; None where it left nothing that can be used."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._state.read_text())
            until_ms, size = int(state["until_ms"]), int(state["bytes"])
            if state["origin"] != self._origin:
                remedy = f"remove {self._part.name} and {self._state.name}, or name another file"
                raise InputError("--to", str(self._part), f"is the rest of another import: {state['origin']}", remedy)
            if self._part.stat().st_size >= size:
                return until_ms, size
        return None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError("--to", str(path), f"cannot be written: {error.strerror}", "name a writable place with room")
