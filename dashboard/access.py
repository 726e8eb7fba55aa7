"""The way to the API: where it is, and one clear message where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.dashboard.text import Text
from tocsin.domain.errors import TocsinError, Unavailable

URL_VARIABLE = "TOCSIN_DASHBOARD__API_URL"
TOKEN_VARIABLE = "TOCSIN_DASHBOARD__API_TOKEN"  # noqa: S105  # a name, not a token
CA_VARIABLE = "TOCSIN_DASHBOARD__API_CA"
DEFAULT_URL = "http://127.0.0.1:8470"
REFRESH_SECONDS = 5.0
"""Time between two looks at the API."""


def connect() -> Client:
    """A client of the API that the environment names; close it after use."""
    ca = os.environ.get(CA_VARIABLE)
    url, token = os.environ.get(URL_VARIABLE) or DEFAULT_URL, os.environ.get(TOKEN_VARIABLE, "")
    return Client(url, token, ca=Path(ca) if ca else None)


def show_problem(error: TocsinError, text: Text) -> None:
    """Say what is wrong and what to do about it."""
    kind = "down" if isinstance(error, Unavailable) else "denied" if isinstance(error, Denied) else "other"
    st.error(f"**{text(f'problem.{kind}')}**\n\n{text(f'remedy.{kind}')}\n\n``{error}``", icon=":material/cloud_off:")


@contextmanager
def api(text: Text) -> Iterator[Client]:
    """A client for one run of a page; an error of the API ends that run with its message instead of a traceback."""
    try:
        with connect() as client:
            yield client
    except TocsinError as error:
        show_problem(error, text)
        st.stop()
