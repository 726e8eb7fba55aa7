"""Statements about the future: models behind one two-method protocol, the process they run in, and how they are scored.

`protocol.py` is the contract, `registry.py` finds the models (one `model_*.py` each), `worker.py` runs them beside the
caller. `ticket_clock.py` and `ticket_nulls.py` score alerts against what operators logged.
"""
