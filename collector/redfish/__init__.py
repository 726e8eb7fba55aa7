"""What management controllers around a node say over Redfish: leaks, coolant, fans, power supplies."""
