"""Versions of what runs on a node beside its GPUs: kernel, libraries, packages, firmware of network cards."""
