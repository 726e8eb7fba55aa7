"""The script that Streamlit runs: the frame around every page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from tocsin.dashboard import style
from tocsin.dashboard.access import is_tenant
from tocsin.dashboard.boundary import boundary
from tocsin.dashboard.frame import adopt_language, current_text, header, sidebar
from tocsin.dashboard.login import gate

ICON = Path(__file__).with_name("icon.svg")
LOGO = Path(__file__).with_name("logo.svg")
SIDEBAR_WIDTH = 220
PAGES = {
    "overview": ("page_overview.py", ":material/grid_view:"),
    "gpu": ("page_gpu.py", ":material/memory:"),
    "forecast": ("page_forecast.py", ":material/event_upcoming:"),
    "decisions": ("page_decisions.py", ":material/gavel:"),
    "scoreboard": ("page_scoreboard.py", ":material/leaderboard:"),
    "fragmentation": ("page_fragmentation.py", ":material/dashboard:"),
    "cost": ("page_cost.py", ":material/payments:"),
    "usage": ("page_usage.py", ":material/pie_chart:"),
    "audit": ("page_audit.py", ":material/history_edu:"),
    "versions": ("page_versions.py", ":material/difference:"),
}


# Pages that show a tenant's own; all others are about the fleet, and are not there for a tenant.
OF_TENANTS = frozenset({"overview", "gpu", "usage"})

# The page at the root, and a name that leads there. Comments, for Streamlit would draw a string that stands by itself.
FIRST = "overview"
ALIAS = "now"


def _to_first() -> None:
    """Go to the page at the root, with the view that the URL names."""
    st.switch_page(PAGES[FIRST][0], query_params=st.query_params.to_dict())


def main() -> None:
    """One run of the script."""
    st.set_page_config(page_title="Tocsin", page_icon=ICON, layout="wide", initial_sidebar_state=SIDEBAR_WIDTH)
    adopt_language()
    text = current_text()
    tenant = is_tenant()
    pages = [
        st.Page(file, title=text(f"page.{name}"), icon=icon, url_path=name, default=name == FIRST)
        for name, (file, icon) in PAGES.items()
        if name in OF_TENANTS or not tenant
    ]
    pages.append(st.Page(_to_first, url_path=ALIAS, visibility="hidden"))
    st.logo(str(LOGO), size="large", icon_image=str(ICON))
    page = st.navigation(pages)
    sidebar(text)
    with boundary(page.title, whole=True):
        if gate(text):
            st.html(style.hidden_heading(page.title))
            header()
            page.run()


if __name__ == "__main__":
    main()
