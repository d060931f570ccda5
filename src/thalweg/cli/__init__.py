"""The command line: `thalweg race`, `rules`, `show` and `bench`."""
