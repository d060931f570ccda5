"""Sharded slots: each rank stores and updates a part of every variable."""
