"""Which optimizer the tensors of a file are of: told by names, by a graph, or by their order."""
