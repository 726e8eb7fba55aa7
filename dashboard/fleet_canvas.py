"""The canvas on which the map is drawn, as a Streamlit component."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import streamlit as st

_HTML = """<div class="map"><canvas tabindex="0" role="application"></canvas><div class="tip" hidden></div>
<div class="said" role="status"></div></div>"""


def _file(name: str) -> str:
    return resources.files("tocsin.dashboard").joinpath(name).read_text(encoding="utf-8")


@cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component(
        "tocsin_fleet_map", html=_HTML, css=_file("fleet_map.css"), js=_file("fleet_map.js")
    )


def canvas(data: dict[str, Any], key: str) -> tuple[str, int] | None:
    """Draw `data` (see `heatmap.drawing`); host and place of the GPU that was just opened, None where none was."""
    result = _component()(key=key, data=data, on_opened_change=lambda: None)
    opened = result.get("opened")
    return (str(opened["host"]), int(opened["slot"])) if opened else None
