"""The fleet for assistants: a read-only server of the Model Context Protocol over the brain's HTTP API."""
