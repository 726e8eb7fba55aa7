"""Kinds of conditions, one file each."""
