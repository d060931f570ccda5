"""The CPU engine: formulas compiled into loops over raw memory, on torch's own threads."""
