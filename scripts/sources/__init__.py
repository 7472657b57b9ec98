"""Reads the project's own sources: what `scripts/modules` and `scripts/prose` share."""
