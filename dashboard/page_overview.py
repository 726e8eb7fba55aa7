"""Page: see `tocsin.dashboard.overview`."""

from tocsin.dashboard.overview import render

render()
