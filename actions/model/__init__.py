"""What the engine speaks of: policy, view of the fleet, decisions and their log."""
