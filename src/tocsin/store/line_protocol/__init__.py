"""InfluxDB line protocol: what agent, API and stores share."""
