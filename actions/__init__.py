"""Decisions, guards, executors and the loop that joins them.

`decide` says what ought to be done, `guards` whether it may be done now, `executors` do it, `loop` records every step
in the journal and does each thing once. `view` is the state that all of them look at.
"""
