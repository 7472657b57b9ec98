"""The words that all parts share; pure data."""
