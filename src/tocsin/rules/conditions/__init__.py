"""Kinds of conditions, one file each; a file put here is found and needs no registration."""
