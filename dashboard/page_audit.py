"""Page: see `tocsin.dashboard.audit`."""

from tocsin.dashboard.audit import render

render()
