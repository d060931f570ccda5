"""Measuring steps: shapes, peers, this machine's bandwidth, interleaved timing, and tables."""
