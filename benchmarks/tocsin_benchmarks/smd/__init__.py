"""SMD and ASD: faults of servers in many metrics."""
