"""Network ports of a node beside its GPUs: InfiniBand, RoCE and Ethernet."""
