"""Programs that the scenes of the NIC place run in network namespaces."""
