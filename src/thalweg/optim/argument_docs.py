"""Descriptions of constructor arguments with one meaning in most optimizer classes.

A description in the docstring of a class has priority. Options are described in
`thalweg._core.options`.
"""

NOTES = """Arguments of optimizers of torch's kind.

Args:
    params: Parameters, pairs of a name and a parameter, or groups, which may have arguments of
        their own.
    lr: The learning rate, a number or a tensor of shape ().
    betas: What the running means of gradients and of their squares keep in a step.
    beta2: What the running mean of squares keeps in a step.
    eps: A small number that keeps a divisor from 0.
    weight_decay: How much of each parameter decays; 0 is none.
    decoupled_weight_decay: Whether decay is AdamW's, beside the step, and not part of the gradient.
    momentum: What the running mean of gradients keeps in a step.
    nesterov: Whether momentum is Nesterov's.
    amsgrad: Whether steps are divided by the largest running mean of squares so far.
    maximize: Whether the objective is maximized.
    foreach: As torch's; it chooses nothing where a step is one pass over memory.
    fused: As torch's; with True, `torch.amp.GradScaler` leaves it to the step to unscale.
    capturable: Whether steps on a GPU can be captured in a CUDA graph.
    differentiable: Whether gradients flow through the step, which is torch's own then.
    initial_accumulator_value: What the sum of squares begins with.
    rho: What the running mean of squares keeps in a step.
    centered: Whether to divide by the root of the variance.
    heads: Number of equal blocks of rows that a parameter is cut into, each one a matrix, or the
        numbers of rows of blocks; short for `layout="rows=..."`. 1 is one matrix.
    layout: The matrices that a parameter holds, an `optim.MatrixLayout` or its text, such as
        "batch=1 rows=256+64+64". None is one matrix, and raises an error for parameters of three
        dimensions, which may be stacks of matrices.
    ns_coefficients: Three numbers of Newton-Schulz iterations, a tuple of such for each of them, or
        "original", "quintic" or "polar_express".
    ns_steps: How many Newton-Schulz iterations a step has.
    ns_dtype: What iterations are in, "float32" or "bfloat16"; None is float32 on the CPU.
    adjust_lr_fn: How the rate follows a matrix's shape: "original", "match_rms_adamw" or
        "rms_to_rms"; None is "original".
    precondition_frequency: In how many steps the basis changes once.
    max_precondition_dim: Sides that are longer keep their own basis.
    shampoo_beta: What the running means of gradients' products keep in a step.
    warmup_steps: In how many steps the rate rises to what it is.
    r: The weight of a step in the mean is its number to this power.
    weight_lr_power: The same weight is multiplied by the largest rate so far to this power.
    l1: Strength of the L1 penalty.
    l2: Strength of the L2 penalty.
"""
