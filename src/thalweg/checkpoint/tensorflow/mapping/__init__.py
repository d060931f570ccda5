"""Assignment of the tensors of a file to variables, with their axes."""
