"""InfiniteHBD: faults of the servers of a training cluster."""
