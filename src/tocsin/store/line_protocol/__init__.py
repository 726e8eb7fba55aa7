"""InfluxDB line protocol: the wire format that agent, API and server stores share.

Measurements: ``gpu`` (tags ``gpu_uuid``, ``host``, ``mig_uuid`` for a MIG instance, and the label of a variant; each
metric is a field, without ``gpu_``), ``gpu_missing`` (the same tags, integer codes of `Missing`), ``gpu_info`` (the
GPU's other attributes as text), ``gpu_owner`` (who uses it, as JSON), ``gpu_event``, ``gpu_finding`` and
``gpu_prediction``.
"""
