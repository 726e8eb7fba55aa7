"""Page: see `tocsin.dashboard.cost`."""

from tocsin.dashboard.cost import render

render()
