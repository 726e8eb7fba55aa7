"""Which place holds which: GPUs, links, hosts, racks, power and cooling zones, NVLink domains, rails, jobs."""
