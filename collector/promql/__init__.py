"""GPUs that a Prometheus-compatible server has scraped already, read as they are now."""
