"""Engine for CUDA GPUs: rules as Triton kernels over tables of tensor addresses."""
