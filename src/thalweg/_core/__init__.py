"""One optimizer step: everything that all front ends share."""
