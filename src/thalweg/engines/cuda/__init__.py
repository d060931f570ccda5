"""The engine of GPUs: the rules as Triton kernels over tables of addresses."""
