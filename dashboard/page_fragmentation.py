"""Page: see `tocsin.dashboard.fragmentation`."""

from tocsin.dashboard.fragmentation import render

render()
