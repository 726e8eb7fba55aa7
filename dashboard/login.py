"""Log-in and log-out of a person: by password, or at an OpenID Connect provider."""

from __future__ import annotations

import logging
from html import escape
from json import dumps

import streamlit as st

from tocsin.client.control import LoginMethods, OidcMethod
from tocsin.client.device import DeviceCode, DeviceLogin, LoginRefused
from tocsin.client.errors import Denied
from tocsin.dashboard import access, style
from tocsin.dashboard.sessions import SESSION_PATH, SESSIONS, TICKET_HEADER, Login, login_of
from tocsin.dashboard.text import Text, markdown_safe
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import TocsinError, Unavailable

_log = logging.getLogger(__name__)
_METHODS_SECONDS = 60
_WANTED = "login.wanted"
_TICKET = "login.ticket"
_DEVICE = "login.device"
_PROBLEM = "login.problem"
_WIDTH = 460


_known: dict[str, tuple[float, LoginMethods]] = {}


def methods() -> LoginMethods:
    """How people log in, asked once a minute; none where the API does not answer, which the page itself says."""
    now = SystemClock().monotonic()
    try:
        with access.client_with("") as client:
            kept = _known.get(client.base_url)
            if kept is None or now - kept[0] > _METHODS_SECONDS:
                kept = _known[client.base_url] = (now, client.login_methods())
            return kept[1]
    except TocsinError:
        return LoginMethods(password=False)


def offered(found: LoginMethods) -> bool:
    """Whether anybody can log in."""
    return found.password or found.oidc is not None


def gate(text: Text) -> bool:
    """Whether the page may be shown; where not, the form is drawn instead."""
    if access.current_login() is not None:
        _hand_over_cookie()
        return True
    wanted = bool(st.session_state.get(_WANTED))
    if access.own_token() and not wanted and not access.login_ended():
        return True
    found = methods()
    if not offered(found):
        return True
    _form(found, text)
    return False


def _form(found: LoginMethods, text: Text) -> None:
    with st.container(horizontal_alignment="center"), st.container(width=_WIDTH, border=True):
        st.html(f'<h1 class="tc-title tc-login">{escape(text("login.title"))}</h1>')
        if access.login_ended():
            st.info(text("login.ended"), icon=":material/schedule:")
        if problem := st.session_state.get(_PROBLEM):
            st.error(markdown_safe(problem))
        if found.password:
            _password(text)
        if found.oidc is not None:
            _provider(found.oidc, text)
        if access.own_token():
            st.button(text("login.without"), on_click=_stay, type="tertiary")


def _stay() -> None:
    access.end_login(expired=False)
    st.session_state[_WANTED] = False


def _password(text: Text) -> None:
    with st.form("login", clear_on_submit=True, border=False):
        user = st.text_input(text("login.user"), autocomplete="username")
        password = st.text_input(text("login.password"), type="password", autocomplete="current-password")
        if st.form_submit_button(text("login.submit"), type="primary"):
            _check(user, password, text)


def _check(user: str, password: str, text: Text) -> None:
    try:
        with access.client_with("") as client:
            given = client.login(user, password)
    except TocsinError as error:
        st.session_state[_PROBLEM] = _reason(error, text)
        st.rerun()
    _begin(login_of(given.token, given.name, given.role, given.expires, by_password=True))


def _reason(error: TocsinError, text: Text) -> str:
    return f"{text('login.refused')} ({error})" if isinstance(error, (Denied, Unavailable)) else str(error)


def _begin(login: Login) -> None:
    st.session_state[_TICKET] = SESSIONS.ticket(access.begin_login(login))
    for key in (_WANTED, _DEVICE, _PROBLEM):
        st.session_state.pop(key, None)
    st.rerun()


def _hand_over_cookie() -> None:
    """Let the browser fetch its cookie, so that a reload and other tabs are logged in as well."""
    if (ticket := st.session_state.pop(_TICKET, None)) is not None:
        headers = dumps({TICKET_HEADER: ticket})
        script = f"fetch({dumps(SESSION_PATH)}, {{method: 'POST', headers: {headers}}});"
        st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def _provider(method: OidcMethod, text: Text) -> None:
    waiting: tuple[DeviceLogin, DeviceCode] | None = st.session_state.get(_DEVICE)
    if waiting is not None:
        _wait(*waiting, text)
    elif st.button(text("login.provider"), type="secondary" if st.session_state.get(_PROBLEM) else "primary"):
        login = DeviceLogin(method, SystemClock())
        try:
            st.session_state[_DEVICE] = (login, login.begin())
            st.session_state.pop(_PROBLEM, None)
        except TocsinError as error:
            st.session_state[_PROBLEM] = _reason(error, text)
        st.rerun()


def _wait(login: DeviceLogin, code: DeviceCode, text: Text) -> None:
    st.markdown(text("login.device"))
    st.link_button(text("login.open"), code.complete or code.url, icon=":material/open_in_new:", type="primary")
    st.html(style.facts([(text("login.code"), code.user_code)]))

    @st.fragment(run_every=code.interval)
    def poll() -> None:
        st.caption(text("login.waiting"))
        if st.session_state.get(_DEVICE) is not None:
            _ask(login, code, text)

    poll()


def _ask(login: DeviceLogin, code: DeviceCode, text: Text) -> None:
    try:
        if (given := login.ask(code)) is None:
            return
        login.close()
        with access.client_with(given.token) as client:
            who = client.me()
    except TocsinError as error:
        late = isinstance(error, LoginRefused)
        st.session_state[_PROBLEM] = f"{text('login.late')} ({error})" if late else _reason(error, text)
        st.session_state.pop(_DEVICE, None)
        st.rerun()
    _begin(login_of(given.token, who.name, who.role, given.expires, by_password=False))


def _log_out() -> None:
    if (login := access.current_login()) is not None and login.by_password:
        try:
            with access.client_with(login.token) as client:
                client.logout()
        except TocsinError as error:
            # The brain is gone, or has forgotten it: it is dropped here anyway.
            _log.info("the brain did not end a log-in: %s", error)
    access.end_login(expired=False)


def _want() -> None:
    st.session_state[_WANTED] = True


def person(text: Text) -> None:
    """Who is logged in, in the side bar: name, role, and the way out; or the way in, where there is one."""
    if (login := access.current_login()) is not None:
        role = style.chip(text.name("role", login.role))
        st.html(style.bar([f'<span class="tc-who">{escape(login.name.partition(":")[2] or login.name)}</span>', role]))
        st.button(text("logout"), on_click=_log_out, icon=":material/logout:", width="stretch")
    elif access.own_token() and offered(methods()):
        st.button(text("login.title"), on_click=_want, icon=":material/login:", width="stretch")
