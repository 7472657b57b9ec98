"""The switches that are measured, each behind the same few calls (`peers.base`)."""
