"""Processes: the only place where concrete sources, stores, models and executors are wired together."""
