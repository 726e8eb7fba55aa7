"""The process of a fleet: it forecasts, decides, guards, acts and serves the API."""
