"""Quantiles of simulated telemetry ahead."""
