"""Variables and an optimizer as the tensors that TensorFlow looks for."""
