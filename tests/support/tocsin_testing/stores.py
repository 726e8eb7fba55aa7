def influx_from_environment(): return None
