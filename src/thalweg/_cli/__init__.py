"""The command line: `thalweg` and its commands."""
