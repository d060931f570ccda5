"""The commands of `thalweg`, one module each."""
