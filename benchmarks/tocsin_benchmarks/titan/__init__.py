"""Titan: GPU errors of a supercomputer over years."""
