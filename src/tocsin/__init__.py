"""Tocsin: the early-warning bell of a GPU fleet."""

__version__ = "0.1.0"
