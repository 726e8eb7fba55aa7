"""The HTTP API: endpoints over the `Service` protocol, bearer tokens with roles, one error shape, and its server."""
