"""InfluxDB 2.x."""
