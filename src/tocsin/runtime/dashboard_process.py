"""Starting the dashboard as a process of its own."""

from __future__ import annotations

import importlib.util
import os

from tocsin.config.address import free_or, split_address
from tocsin.domain.errors import Unavailable


def dashboard_command(listen: str, api_url: str, api_token: str) -> tuple[list[str], dict[str, str], str]:
    """Command line, environment and URL of a dashboard; a taken port is replaced by a free one.

    Raises Unavailable where Streamlit is not installed.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise Unavailable("the dashboard needs Streamlit: pip install 'tocsin[dashboard]'")
    from tocsin.dashboard.launch import command

    host, port = split_address(listen, "dashboard.listen")
    port = free_or(host, port)
    environment = {
        **os.environ,
        "TOCSIN_DASHBOARD__API_URL": api_url,
        "TOCSIN_DASHBOARD__API_TOKEN": api_token,
    }
    return command(host, port), environment, f"http://{host}:{port}"
