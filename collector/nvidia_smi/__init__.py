"""The source over the program nvidia-smi."""
