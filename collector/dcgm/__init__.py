"""The sources over DCGM: the exporter's page and the program dcgmi."""
