"""Admits, installs and moves real-time paths through OpenFlow switches."""
