"""Tocsin's own log and own metrics; what it says about itself, never about a GPU."""
