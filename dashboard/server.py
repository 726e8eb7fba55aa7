"""What `streamlit run` serves: the script of the pages, and where a browser gets the cookie of its log-in."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tocsin.dashboard.sessions import COOKIE, SESSION_PATH, SESSIONS, TICKET_HEADER


async def keep(request: Request) -> Response:
    """Turn a ticket into a cookie that scripts cannot read and other sites do not send."""
    found = SESSIONS.redeem(request.headers.get(TICKET_HEADER, ""))
    if found is None:
        return Response(status_code=403)
    name, seconds = found
    response = Response(status_code=204, headers={"Cache-Control": "no-store"})
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(COOKIE, name, max_age=seconds, path="/", httponly=True, secure=secure, samesite="strict")
    return response


app = st.App(Path(__file__).with_name("app.py"), routes=[Route(SESSION_PATH, keep, methods=["POST"])])
