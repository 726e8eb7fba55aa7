"""Plans: what to move, place, add, remove or cap, worked out and tried on a copy of the state before anything acts.

Planners are pure functions of a `FleetState`; they return a `Plan` and change nothing.
"""
