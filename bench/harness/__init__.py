"""The harness: it defines measurements, takes them, and writes their pages."""
