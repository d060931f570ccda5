"""The version of thalweg, for what cannot import all of it."""

__version__ = "0.1.0"
