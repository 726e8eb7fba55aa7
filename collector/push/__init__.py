"""GPUs that others push: remote write and OTLP, as samples, and what is made of them."""
