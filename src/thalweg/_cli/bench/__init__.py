"""Measurement of steps: shapes, peers, memory bandwidth, interleaved timing, and tables."""
