"""Detection of a file's optimizer by names, by a graph, or by the order of tensors."""
