"""Tocsin: the early-warning bell of a GPU fleet."""

__version__ = "0.2.0"
