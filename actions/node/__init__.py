"""What is done on a node: limits of its GPUs, the thermal controller, resets and requests to training processes.

Brain and agent share it: the brain keeps orders in a queue, the node's agent takes them, checks them once more and
carries them out through ports that the runtime fills. Nothing here loads a driver or a web server.
"""
