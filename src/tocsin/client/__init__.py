"""The wire models of the HTTP API and its typed client; command line and dashboard speak to a brain through it."""
