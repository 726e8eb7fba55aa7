"""The source over recordings."""
