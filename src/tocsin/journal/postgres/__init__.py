"""The journal in a PostgreSQL database: for several brains of one cell, of which one writes."""
