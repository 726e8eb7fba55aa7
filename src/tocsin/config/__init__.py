"""Settings and how they are loaded and checked."""
