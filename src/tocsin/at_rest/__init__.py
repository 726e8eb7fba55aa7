"""State on disk, encrypted: keys, databases, single files, and what the disk below does by itself."""
