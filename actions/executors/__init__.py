"""Executors: what carries out a decision. One file each; `registry` finds them by name."""
