"""Foundations of all packages: locks, switches, scalars, counters, execution mode."""
