"""The CPU engine: formulas compiled into loops over raw memory, on torch's own threads."""

# Registers the handler that resets torch's threads in forked processes.
from thalweg._engines.cpu import openmp as openmp
