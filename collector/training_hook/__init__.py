"""The agent's end of the hook in training processes."""
