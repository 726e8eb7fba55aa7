"""Forecasts of levels: trend, smoothing, the time to a threshold."""
