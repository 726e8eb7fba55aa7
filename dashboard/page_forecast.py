"""Page: see `tocsin.dashboard.forecast`."""

from tocsin.dashboard.forecast import render

render()
