"""Adam that changes only the rows that a sparse gradient names."""

from dataclasses import replace

from thalweg.rules.adam_v1 import ADAM_V1

LAZY_ADAM = replace(
    ADAM_V1,
    name="LazyAdam",
    update_untouched=None,
    source="tf.contrib.opt.LazyAdamOptimizer of TensorFlow 1.15; kernel ApplyAdam",
    differs="torch.optim.SparseAdam adds epsilon after bias correction.",
)
