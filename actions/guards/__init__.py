"""Guards: each asks one question about a decision and answers allow, hold or deny with a reason.

One small file holds a guard or a few of a kind, `tocsin.plugins` names them all. docs/guards.md describes each.
"""
