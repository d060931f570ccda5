"""Detection of a file's optimizer from its tensors: by names, by a graph, or by their order."""
