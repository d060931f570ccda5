"""The version of thalweg, for code that cannot import the whole package."""

__version__ = "0.1.0"
