"""The companion that reads the kernel log."""
