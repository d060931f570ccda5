"""Pictures of what the steps of a training say of themselves: a page, and a table while it runs."""
