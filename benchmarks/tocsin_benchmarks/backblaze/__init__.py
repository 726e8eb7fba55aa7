"""Backblaze drives: daily counters before a drive fails."""
