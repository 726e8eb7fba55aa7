"""Scenario files that ship with the simulation."""
