"""Page: see `tocsin.dashboard.scoreboard`."""

from tocsin.dashboard.scoreboard import render

render()
