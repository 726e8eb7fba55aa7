"""The live view of a fleet, or of one node, in a terminal. It knows the client and the domain alone."""
