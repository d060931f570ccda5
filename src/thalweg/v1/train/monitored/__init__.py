"""Sessions that save, count and stop by hooks."""
