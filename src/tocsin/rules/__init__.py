"""Rules over the state and the events of the fleet: the file they come from, engine, XID catalogue and incidents."""
