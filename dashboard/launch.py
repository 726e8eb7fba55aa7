"""How the dashboard is started."""

from __future__ import annotations

import sys
from pathlib import Path

_THEME = {
    "theme.font": "'Inter', 'Source Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif",
    "theme.baseRadius": "small",
    "theme.headingFontWeights": "600",
    "theme.metricValueFontSize": "1.75rem",
    "theme.light.primaryColor": "#0b6e8f",
    "theme.light.backgroundColor": "#fbfcfd",
    "theme.light.secondaryBackgroundColor": "#f0f3f6",
    "theme.light.textColor": "#17212b",
    "theme.light.borderColor": "#d9e0e7",
    "theme.dark.primaryColor": "#2a7c9b",
    "theme.dark.linkColor": "#5cc0e0",
    "theme.light.linkColor": "#0b6e8f",
    "theme.dark.backgroundColor": "#0f151b",
    "theme.dark.secondaryBackgroundColor": "#18212a",
    "theme.dark.textColor": "#e6edf3",
    "theme.dark.borderColor": "#2a3440",
}


def command(host: str, port: int) -> list[str]:
    """The command line that serves the dashboard on `host` and `port` (not 0: Streamlit takes no free port by itself).

    The process reads TOCSIN_DASHBOARD__API_URL and TOCSIN_DASHBOARD__API_TOKEN. It sends nothing to anyone, watches no
    files and opens no browser. `/_stcore/health` answers 200 once it serves.
    """
    options = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.runOnSave": "false",
        # Else Streamlit draws every string that stands by itself in a page's file: the docstrings of its constants.
        "runner.magicEnabled": "false",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": host,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "client.showSidebarNavigation": "true",
        **_THEME,
    }
    script = str(Path(__file__).with_name("server.py"))
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [sys.executable, "-m", "streamlit", "run", script, *flags]
