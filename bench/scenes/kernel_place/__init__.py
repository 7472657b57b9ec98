"""Programs that the scenes of the kernel place run in network namespaces."""
