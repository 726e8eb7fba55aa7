"""Page: see `tocsin.dashboard.gpu_detail`."""

from tocsin.dashboard.gpu_detail import render

render()
