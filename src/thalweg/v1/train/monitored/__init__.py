"""Sessions with hooks that save, log and stop."""
