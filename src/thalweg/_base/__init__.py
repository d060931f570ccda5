"""What everything stands on: locks, switches, scalars, counters, who runs."""
