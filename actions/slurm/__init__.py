"""Slurm as a manager: its commands, what they print, and what to make of it."""
