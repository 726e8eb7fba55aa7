"""The embedded store: a hot window in SQLite, older hours in segments."""
