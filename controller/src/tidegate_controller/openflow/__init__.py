"""Switches, by OpenFlow 1.3."""
