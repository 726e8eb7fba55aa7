"""Page: see `tocsin.dashboard.decision_list`."""

from tocsin.dashboard.decision_list import render

render()
