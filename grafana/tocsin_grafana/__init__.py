"""Grafana dashboards and Prometheus alerts of Tocsin, made from the metric table and the shipped rules."""
