"""Forecasts of pools and of what fills up."""
