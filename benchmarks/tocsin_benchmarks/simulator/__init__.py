"""The simulated fleet with known faults."""
