"""GWDG: A100 nodes around logged incidents."""
