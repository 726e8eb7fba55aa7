"""Guards: each asks one question about a decision and answers allow, hold or deny with a reason.

One small file holds a guard or a few of a kind; `registry` finds them. docs/guards.md describes each.
"""
