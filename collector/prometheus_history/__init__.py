"""A site's own past, read from Prometheus by range queries."""
