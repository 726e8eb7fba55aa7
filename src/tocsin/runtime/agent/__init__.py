"""The process on a node: it reads GPUs, serves and pushes what it read, and carries out orders."""
