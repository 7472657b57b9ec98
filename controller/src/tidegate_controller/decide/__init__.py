"""Decisions: pure functions and machines, without clock, sockets and OpenFlow."""
