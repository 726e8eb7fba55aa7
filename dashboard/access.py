"""The way to the API: where it is, as whom, and one clear message where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.control import Whoami
from tocsin.client.errors import Busy, Denied
from tocsin.dashboard.boundary import REFRESH_SECONDS, look_again
from tocsin.dashboard.kept_answers import PageClient
from tocsin.dashboard.sessions import COOKIE, SESSIONS, Login
from tocsin.dashboard.text import Text
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError, Unavailable

URL_VARIABLE = "TOCSIN_DASHBOARD__API_URL"
TOKEN_VARIABLE = "TOCSIN_DASHBOARD__API_TOKEN"  # noqa: S105  # a name, not a token
CA_VARIABLE = "TOCSIN_DASHBOARD__API_CA"
DEFAULT_URL = "http://127.0.0.1:8470"
DECIDERS = ("operator", "admin")
"""Roles that may approve, reject, undo, pause and resume."""
_SESSION = "login.session"
_ENDED = "login.ended"
_OLD = "answers.old"
_TENANT = "login.tenant"
CHOSEN_CELL = "cells.chosen"
"""Key of the session's state under which the cell stands that pages show."""
_TOLD_SECONDS = 3 * REFRESH_SECONDS
"""How long the age of a run's answers is told: until the next run of the page, and a little longer."""


def own_token() -> str:
    """The dashboard's own token; empty where it has none."""
    return os.environ.get(TOKEN_VARIABLE, "")


def session_name() -> str:
    """Name of this browser's log-in: of this tab, else that of the browser's cookie; empty where there is none."""
    return str(st.session_state.get(_SESSION) or st.context.cookies.get(COOKIE, ""))


def current_login() -> Login | None:
    """The log-in of the person at this browser; None where nobody is logged in, or no longer."""
    name = session_name()
    if (found := SESSIONS.find(name)) is not None:
        # That of the cookie becomes this tab's, so that its end is told here as well.
        st.session_state[_SESSION] = name
    elif st.session_state.get(_SESSION):
        end_login(expired=True)
    return found


def begin_login(login: Login) -> str:
    """Use `login` from now on in this tab; returns the session's name, for the cookie."""
    name = SESSIONS.open(login)
    st.session_state[_SESSION] = name
    st.session_state.pop(_ENDED, None)
    return name


def end_login(*, expired: bool) -> None:
    """Forget the log-in of this browser; `expired` makes the next page say why."""
    SESSIONS.close(session_name())
    st.session_state.pop(_SESSION, None)
    st.session_state[_ENDED] = expired


def login_ended() -> bool:
    """Whether this tab's log-in has ended by itself."""
    return bool(st.session_state.get(_ENDED))


def current_token() -> str:
    """The token of whoever is logged in, else the dashboard's own; only a run of the script knows who that is."""
    login = current_login()
    return login.token if login is not None else own_token()


def is_tenant() -> bool:
    """Whether whoever looks is bound to namespaces, and so sees own GPUs, jobs and cost alone; asked once for each
    token. False where the API does not answer: what is another's it refuses by itself."""
    token = current_token()
    known: tuple[str, bool] | None = st.session_state.get(_TENANT)
    if known is None or known[0] != token:
        try:
            with client_with(token) as client:
                known = (token, bool(client.me().namespaces))
        except TocsinError:
            return False
        st.session_state[_TENANT] = known
    return known[1]


def chosen_cell() -> str:
    """The cell that the person has chosen; empty where it is all of them, or there is one alone."""
    return str(st.session_state.get(CHOSEN_CELL, ""))


def connect(cell: str | None = None) -> PageClient:
    """A client of the API that the environment names, as whoever is logged in; close it after use. `cell` answers, by
    default the one that is chosen; empty: that brain itself."""
    ca = os.environ.get(CA_VARIABLE)
    wanted = chosen_cell() if cell is None else cell
    base = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    return PageClient(base, current_token(), ca=Path(ca) if ca else None, cell=wanted)


def client_with(token: str, cell: str = "") -> Client:
    """A client of the API that the environment names, with `token`, that answers nothing by itself."""
    ca = os.environ.get(CA_VARIABLE)
    return Client(os.environ.get(URL_VARIABLE) or DEFAULT_URL, token, ca=Path(ca) if ca else None, cell=cell)


def note_age(client: PageClient) -> None:
    """Keep how old the answers were that a run of this tab had to do with."""
    if client.oldest_s > 0:
        st.session_state[_OLD] = (SystemClock().monotonic(), client.oldest_s)


def age_of_answers() -> float:
    """Seconds by which what this tab shows is old because the brain is busy; 0.0 where it is not."""
    at_s, oldest_s = st.session_state.get(_OLD, (0.0, 0.0))
    return oldest_s if SystemClock().monotonic() - at_s < _TOLD_SECONDS else 0.0


def lacking(who: Whoami, text: Text, *roles: str) -> str:
    """Why `who` cannot press a button that needs one of `roles`, for its `help`; empty where they can."""
    if who.role in roles:
        return ""
    needed = text("role.or").join(text.name("role", role) for role in roles)
    return text("role.lacks", role=text.name("role", who.role), needed=needed)


def show_problem(error: TocsinError, text: Text) -> None:
    """Say what is wrong and what to do about it."""
    kinds = (("busy", Busy), ("down", Unavailable), ("denied", Denied))
    kind = next((name for name, one in kinds if isinstance(error, one)), "other")
    # On one line and without a backtick it cannot end the code span that it stands in.
    detail = " ".join(str(error).replace("`", "'").split())
    said = f"**{text(f'problem.{kind}')}**\n\n{text(f'remedy.{kind}')}\n\n``{detail}``"
    if kind == "busy":
        st.info(said, icon=":material/hourglass_top:")
    else:
        st.error(said, icon=":material/cloud_off:")


def _login_is_over() -> bool:
    """Whether the API no longer knows the person's token, rather than refusing one thing to them."""
    if (login := current_login()) is None:
        return login_ended()
    try:
        with client_with(login.token) as client:
            client.me()
    except Denied:
        end_login(expired=True)
        return True
    except TocsinError:
        return False
    return False


@contextmanager
def api(text: Text, *, whole: bool = False) -> Iterator[PageClient]:
    """A client for one run of a page; an error of the API ends that run with its message instead of a traceback.

    A log-in that has ended leads back to the form. A page that is no fragment, and so is not drawn again by itself,
    is `whole`: after an error it is drawn again all the same.
    """
    try:
        with connect() as client:
            yield client
            note_age(client)
    except Denied as error:
        if _login_is_over():
            st.rerun()
        show_problem(error, text)
        st.stop()
    except TocsinError as error:
        show_problem(error, text)
        if whole:
            look_again()
        st.stop()
