"""Anomalies without labels."""
