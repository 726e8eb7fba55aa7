"""What the API serves, read from the running parts."""
