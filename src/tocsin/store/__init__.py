"""Where telemetry is kept: the store port, the line protocol that everything shares, and one module per store.

`lineprotocol` is the wire format, `factory.open_store` picks an implementation by settings, `sqlite` is the embedded
default. Only `influx` imports influxdb-client, and only when that store is opened.
"""
