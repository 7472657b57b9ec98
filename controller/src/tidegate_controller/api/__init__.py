"""What hosts and people ask, by HTTP."""
