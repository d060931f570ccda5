"""Pictures of the diagnostics of a training: a page, and a table while it runs."""
