"""Starting the dashboard as a process of its own."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from tocsin.config.address import PortClaim, split_address
from tocsin.domain.errors import Unavailable, install_extra


@dataclass(frozen=True)
class DashboardProcess:
    """How to start a dashboard; release `claim` once it has ended."""

    command: list[str]
    environment: dict[str, str]
    url: str
    claim: PortClaim


def prepare_dashboard(
    listen: str, api_url: str, api_token: str, api_ca: Path | None = None, *, exactly: bool = True
) -> DashboardProcess:
    """Command line, environment and URL of a dashboard; unless `exactly`, a taken port is replaced by a free one.

    Raises Unavailable where Streamlit is not installed, and InputError for a taken port.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise Unavailable(f"the dashboard needs Streamlit; {install_extra('dashboard')}")
    from tocsin.dashboard.launch import command

    host, port = split_address(listen, "dashboard.listen")
    claim = PortClaim(host, port, field="dashboard.listen" if exactly else "")
    environment = {
        **os.environ,
        "TOCSIN_DASHBOARD__API_URL": api_url,
        "TOCSIN_DASHBOARD__API_TOKEN": api_token,
        "TOCSIN_DASHBOARD__API_CA": str(api_ca) if api_ca is not None else "",
    }
    return DashboardProcess(command(host, claim.port), environment, f"http://{host}:{claim.port}", claim)
