"""One process of a traced walk: runs a ``tocsin`` command and notes which calls hand on the thing that walks.

``python -m tocsin_testing.walk_trace TREE OUT MARKERS EVENTS -- agent --source nvml``

MARKERS is JSON: texts, numbers and fields by which the thing is known. EVENTS is ``return``, or ``call,return``: a call
hands it on where what it returns or yields holds a marker, and is handed it where an argument does. OUT gets a line of
JSON for each new stack of such a call, with the product's frames alone from the outermost inwards, and one for each
thread that is started.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

import numpy as np

MOST_ITEMS = 512
"""Most items of one container that are looked at."""
MOST_DEPTH = 7
_START = threading.Thread.start.__code__


class Markers:
    """By what the walking thing is known: regular expressions, numbers, or fields that stand together in one object."""

    def __init__(
        self, texts: Sequence[str] = (), numbers: Sequence[float] = (), fields: Mapping[str, Any] | None = None
    ) -> None:
        pattern = "|".join(texts) or r"(?!)"
        self._text = re.compile(pattern)
        self._bytes = re.compile(pattern.encode())
        self._numbers = frozenset(numbers)
        self._fields = dict(fields or {})

    def within(self, value: object, depth: int = MOST_DEPTH) -> bool:
        """Whether `value` is or holds a marker. Only data is looked into: containers, arrays, dataclasses, models."""
        if value is None or depth == 0 or isinstance(value, bool | type):
            return False
        if isinstance(value, str):
            return self._text.search(value) is not None
        if isinstance(value, bytes | bytearray):
            return self._bytes.search(value) is not None
        if isinstance(value, int | float):
            return value in self._numbers
        if isinstance(value, np.ndarray):
            return bool(self._numbers) and value.dtype.kind in "fiu" and bool(np.isin(value, list(self._numbers)).any())
        named = _named(value)
        if named is None:
            return any(self.within(one, depth - 1) for one in _items(value))
        if self._fields and self._fields.items() <= {key: one for key, one in named if key in self._fields}.items():
            return True
        return any(self.within(key, depth - 1) or self.within(one, depth - 1) for key, one in named)


def _named(value: object) -> list[tuple[Any, object]] | None:
    if isinstance(value, Mapping):
        return list(value.items())[:MOST_ITEMS]
    if dataclasses.is_dataclass(value):
        return [(one.name, getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    models = getattr(type(value), "model_fields", None)
    return None if models is None else [(name, getattr(value, name, None)) for name in models]


def _items(value: object) -> Iterator[object]:
    if isinstance(value, Sequence | Set) and not isinstance(value, range):
        yield from list(value)[:MOST_ITEMS]


def _arguments(frame: FrameType) -> Iterator[object]:
    code, known = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return (known[name] for name in code.co_varnames[:count] if name not in ("self", "cls") and name in known)


class Tracer:
    """Notes the stacks of the calls that hand a marker on, in every thread that starts after it.

    With ``call`` among `events`, those of the calls that are handed one too; a method's own object does not count.
    """

    def __init__(self, tree: Path, markers: Markers, out: TextIO, events: Sequence[str] = ("return",)) -> None:
        self._events = frozenset(events)
        self._tree = os.path.realpath(tree) + os.sep
        package = tree / "src" / "tocsin"
        linked = [os.path.realpath(one) + os.sep for one in package.iterdir() if one.is_symlink()]
        self._roots = (str(package) + os.sep, os.path.realpath(package) + os.sep, *linked)
        self._markers = markers
        self._out = out
        self._files: dict[CodeType, str] = {}
        self._seen: set[tuple[int, tuple[tuple[str, str], ...]]] = set()
        self._mine = threading.local()
        self._writing = threading.Lock()

    def start(self) -> None:
        """Trace this thread and every one that starts from now on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def stop(self) -> None:
        """Trace no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, value: object) -> None:
        if frame.f_code is _START and event in ("call", "return"):
            self._thread_start(frame, event)
            return
        # What an iterator or a coroutine hands out is a return here as well.
        if event not in self._events or not self._file(frame.f_code) or getattr(self._mine, "looking", False):
            return
        self._mine.looking = True
        try:
            held = [value] if event == "return" else list(_arguments(frame))
            if any(self._markers.within(one) for one in held):
                self._note(frame)
        except Exception as error:  # what another thread changes while it is looked at
            print(f"not looked into: {frame.f_code.co_qualname}: {error!r}", file=sys.stderr)
        finally:
            self._mine.looking = False

    def _thread_start(self, frame: FrameType, event: str) -> None:
        """The instant of the start is that before it: the new thread may be ahead of the end of the call."""
        if event == "call":
            self._mine.started_at = time.time()
        else:
            self._write({"at": self._mine.started_at, "starts": self._thread(frame.f_locals["self"].ident)})

    def _file(self, code: CodeType) -> str:
        """The file of the product that `code` is of, links resolved; empty where it is of no such file."""
        file = self._files.get(code)
        if file is None:
            file, name = "", code.co_filename
            if name.startswith(self._roots) and code.co_name != "<module>":
                file = os.path.realpath(name).removeprefix(self._tree)
            self._files[code] = file
        return file

    def _note(self, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            file = self._file(frame.f_code)
            if file:
                stack.append((file, frame.f_code.co_qualname))
            frame = frame.f_back
        key = threading.get_ident(), tuple(reversed(stack))
        if key not in self._seen:
            self._seen.add(key)
            self._write({"at": time.time(), "stack": key[1]})

    def _thread(self, ident: int | None) -> str:
        return f"{os.getpid()}-{ident}"

    def _write(self, row: dict[str, object]) -> None:
        with self._writing:
            self._out.write(json.dumps({"thread": self._thread(threading.get_ident()), **row}) + "\n")
            self._out.flush()


def main() -> None:
    """See the module."""
    tree, out, markers = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    events = sys.argv[4].split(",")
    sys.argv = ["tocsin", *sys.argv[6:]]
    with out.open("w") as file:
        tracer = Tracer(tree, Markers(**markers), file, events)
        tracer.start()
        try:
            from tocsin.cli.main import main as run

            run()
        finally:
            tracer.stop()


if __name__ == "__main__":
    main()
