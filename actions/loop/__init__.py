"""From findings to decisions, guards, executions and outcomes."""
