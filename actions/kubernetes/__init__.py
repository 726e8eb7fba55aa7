"""What Tocsin does in a Kubernetes cluster, and the one door to its API server."""
