"""The source over the program npu-smi of Ascend NPUs, and the fault list of their device plugin."""
