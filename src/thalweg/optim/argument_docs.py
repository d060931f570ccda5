"""Descriptions of constructor arguments with one meaning in most optimizer classes.

A description in the docstring of a class has priority. Options are described in
`thalweg._core.options`.
"""

NOTES = """Arguments of torch-style optimizers.

Args:
    params: Parameters, (name, parameter) pairs, or groups, which may have their own arguments.
    lr: The learning rate, a number or a tensor of shape ().
    betas: Decay factors of the running means of gradients and of their squares.
    beta2: Decay factor of the running mean of squares.
    eps: A small number that keeps a divisor from 0.
    weight_decay: Strength of the weight decay; 0 for none.
    decoupled_weight_decay: True for the decay of AdamW; False to add the decay to the gradient.
    momentum: Decay factor of the running mean or sum of gradients.
    nesterov: True for Nesterov momentum.
    amsgrad: True to divide steps by the root of the largest running mean of squares so far.
    maximize: True to maximize the objective.
    foreach: As in torch; without effect if a step is one pass over memory.
    fused: As in torch; with True, the step unscales gradients for `torch.amp.GradScaler`.
    capturable: True to support steps on a GPU that a CUDA graph captures.
    differentiable: True to let gradients flow through the step; torch's code takes it then.
    initial_accumulator_value: Initial value of the sum of squares.
    rho: Decay factor of the running mean of squares.
    centered: True to divide by the root of the variance.
    heads: Number of equal blocks of rows in a parameter, each of them a matrix; or the number of
        rows of each block. Short for `layout="rows=..."`. 1 is one matrix.
    layout: The matrices in a parameter, an `optim.MatrixLayout` or its text, such as
        "batch=1 rows=256+64+64". None is one matrix, and raises an error for parameters of three
        dimensions, which may be stacks of matrices.
    ns_coefficients: Three numbers for all Newton-Schulz iterations, or a tuple of three numbers for
        each iteration; or "original", "quintic" or "polar_express".
    ns_steps: Number of Newton-Schulz iterations in a step.
    ns_dtype: Dtype of the iterations, "float32" or "bfloat16". None is float32 on the CPU, and
        bfloat16 on other devices.
    adjust_lr_fn: Scaling of the rate by a matrix's shape: "original", "match_rms_adamw" or
        "rms_to_rms"; None is "original".
    precondition_frequency: Number of steps from one change of the basis to the next.
    max_precondition_dim: Dimensions longer than this keep the standard basis.
    shampoo_beta: Decay factor of the running means of gradient products.
    warmup_steps: Number of steps in which the rate rises to `lr`.
    r: The weight of a step in the mean is the number of the step to this power.
    weight_lr_power: The weight of a step is multiplied by the largest rate so far to this power.
    l1: Strength of the L1 penalty.
    l2: Strength of the L2 penalty.
"""
