"""The way to the API: where it is, as whom, and one clear message where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.client.models import Whoami
from tocsin.dashboard.sessions import COOKIE, SESSIONS, Login
from tocsin.dashboard.text import Text
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError, Unavailable

URL_VARIABLE = "TOCSIN_DASHBOARD__API_URL"
TOKEN_VARIABLE = "TOCSIN_DASHBOARD__API_TOKEN"  # noqa: S105  # a name, not a token
CA_VARIABLE = "TOCSIN_DASHBOARD__API_CA"
DEFAULT_URL = "http://127.0.0.1:8470"
REFRESH_SECONDS = 5.0
"""Time between two looks at the API."""
DECIDERS = ("operator", "admin")
"""Roles that may approve, reject, undo, pause and resume."""
_SESSION = "login.session"
_ENDED = "login.ended"
_WHO = "login.who"
_WHO_SECONDS = 60.0
"""How long the answer to who we are is believed."""


def own_token() -> str:
    """The dashboard's own token; empty where it has none."""
    return os.environ.get(TOKEN_VARIABLE, "")


def session_name() -> str:
    """Name of this browser's log-in: of this tab, else that of the browser's cookie; empty where there is none."""
    return str(st.session_state.get(_SESSION) or st.context.cookies.get(COOKIE, ""))


def current_login() -> Login | None:
    """The log-in of the person at this browser; None where nobody is logged in, or no longer."""
    found = SESSIONS.find(session_name())
    if found is None and st.session_state.get(_SESSION):
        end_login(expired=True)
    return found


def begin_login(login: Login) -> str:
    """Use `login` from now on in this tab; returns the session's name, for the cookie."""
    name = SESSIONS.open(login)
    st.session_state[_SESSION] = name
    for key in (_ENDED, _WHO):
        st.session_state.pop(key, None)
    return name


def end_login(*, expired: bool) -> None:
    """Forget the log-in of this browser; `expired` makes the next page say why."""
    SESSIONS.close(session_name())
    for key in (_SESSION, _WHO):
        st.session_state.pop(key, None)
    st.session_state[_ENDED] = expired


def login_ended() -> bool:
    """Whether this tab's log-in has ended by itself."""
    return bool(st.session_state.get(_ENDED))


def connect() -> Client:
    """A client of the API that the environment names, as whoever is logged in; close it after use."""
    login = current_login()
    return client_with(login.token if login is not None else own_token())


def client_with(token: str) -> Client:
    """A client of the API that the environment names, with `token`."""
    ca = os.environ.get(CA_VARIABLE)
    return Client(os.environ.get(URL_VARIABLE) or DEFAULT_URL, token, ca=Path(ca) if ca else None)


def whoami(client: Client) -> Whoami:
    """Who `client` is for the API, asked once a minute. Raises as `client` does."""
    now, kept = SystemClock().monotonic(), st.session_state.get(_WHO)
    if kept is None or kept[0] != session_name() or now - kept[1] > _WHO_SECONDS:
        kept = (session_name(), now, client.me())
        st.session_state[_WHO] = kept
    who: Whoami = kept[2]
    return who


def lacking(client: Client, text: Text, *roles: str) -> str:
    """Why a button that needs one of `roles` cannot be pressed, for its `help`; empty where it can.

    st.button(..., disabled=bool(why := lacking(client, text, *DECIDERS)), help=why or None)
    """
    who = whoami(client)
    if who.role in roles:
        return ""
    needed = text("role.or").join(text.name("role", role) for role in roles)
    return text("role.lacks", role=text.name("role", who.role), needed=needed)


def show_problem(error: TocsinError, text: Text) -> None:
    """Say what is wrong and what to do about it."""
    kind = "down" if isinstance(error, Unavailable) else "denied" if isinstance(error, Denied) else "other"
    st.error(f"**{text(f'problem.{kind}')}**\n\n{text(f'remedy.{kind}')}\n\n``{error}``", icon=":material/cloud_off:")


def _login_is_over() -> bool:
    """Whether the API no longer knows the person's token, rather than refusing one thing to them."""
    login = current_login()
    if login is None:
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
def api(text: Text) -> Iterator[Client]:
    """A client for one run of a page; an error of the API ends that run with its message instead of a traceback.

    A log-in that has ended leads back to the form.
    """
    try:
        with connect() as client:
            yield client
    except Denied as error:
        if _login_is_over():
            st.rerun()
        show_problem(error, text)
        st.stop()
    except TocsinError as error:
        show_problem(error, text)
        st.stop()
