"""Queues and link checks of switches, by OVSDB (RFC 7047)."""
