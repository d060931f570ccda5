"""Views of the diagnostics of a training: an HTML page, and a live table."""
