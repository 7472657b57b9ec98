"""Two hosts and the network between them, for the scene `uplink`."""
