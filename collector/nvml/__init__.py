"""The source over the driver's library, NVML."""
