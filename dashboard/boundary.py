"""The last net around what a page draws: a defect costs that part one card of ours, and the frame stays."""

from __future__ import annotations

import hashlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import streamlit as st

from tocsin.dashboard.text import Text
from tocsin.domain.clock import SystemClock

REFRESH_SECONDS = 5.0
"""Time between two looks at the API."""
Part = Callable[[], None]
_LOG = logging.getLogger("tocsin.dashboard")
_TOLD_AT_MOST = 256
"""Defects that are logged once each; after so many the log begins anew with the next."""


class _Told:
    """Which defects the log has already: a page that is drawn every few seconds would fill it with one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def first(self, reference: str) -> bool:
        """Whether `reference` is new."""
        with self._lock:
            if reference in self._known:
                return False
            if len(self._known) >= _TOLD_AT_MOST:
                self._known.clear()
            self._known.add(reference)
            return True


_TOLD = _Told()


def reference_of(error: Exception) -> str:
    """Eight hex digits that tell one defect from another: the kind of error and the lines that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
    return hashlib.sha256("|".join([type(error).__name__, *places]).encode()).hexdigest()[:8]


@contextmanager
def boundary(part: str, *, whole: bool = False) -> Iterator[None]:
    """What is drawn within may fail: then a card says so. `part` names it in the log, where the traceback goes once.

    What is no fragment, and so is not drawn again by itself, is `whole`: it is drawn again all the same.
    Streamlit's own signals (stop, rerun) are no `Exception` and pass.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever the defect: one part of one page must not cost the rest
        reference = reference_of(error)
        if _TOLD.first(reference):
            _LOG.exception("defect %s while drawing %s", reference, part)
        _card(reference, type(error).__name__)
        if whole:
            look_again()


def _card(reference: str, kind: str) -> None:
    text = Text(st.session_state.get("lang", "en"))
    said = f"**{text('defect')}**\n\n{text('defect.remedy', ref=reference)}\n\n``{kind}``"
    st.error(said, icon=":material/build:")


def look_again() -> None:
    """Draw the whole page anew in a while: for what is no part that does so by itself."""
    begun = SystemClock().monotonic()

    @st.fragment(run_every=REFRESH_SECONDS)
    def again() -> None:
        if SystemClock().monotonic() - begun >= REFRESH_SECONDS / 2:
            st.rerun()

    again()


def live(seconds: float = REFRESH_SECONDS) -> Callable[[Part], Part]:
    """A part of a page that is drawn again every `seconds`, within a boundary of its own."""

    def made(part: Part) -> Part:
        @st.fragment(run_every=seconds)
        @wraps(part)
        def drawn() -> None:
            with boundary(f"{part.__module__}.{part.__qualname__}"):
                part()

        return drawn

    return made
