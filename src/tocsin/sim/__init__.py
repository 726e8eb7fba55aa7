"""A simulated fleet: seeded physics and workloads, faults with their published precursors, and what actions do to them.

`fleet.SimulatedFleet` is the door; `spec` has its input and its ground truth, `faults` one module per fault family.
"""
