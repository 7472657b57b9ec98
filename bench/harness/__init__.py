"""The harness: what a measurement is, how it is taken, and how it is told."""
