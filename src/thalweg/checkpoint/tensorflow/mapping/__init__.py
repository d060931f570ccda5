"""Assignment of a file's tensors to variables, with their axes."""
