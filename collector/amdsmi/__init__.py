"""The source over AMD's library: the Python package amdsmi and ROCm's libamd_smi.so behind it."""
