"""`tf.compat.v1.train`: `tf.train`, whose global step is the graph's."""

from thalweg.tf.compat.behavior import begins_graphs
from thalweg.tf.missing import attribute_of
from thalweg.tf.train import *

for _name in (
    "create_global_step", "get_or_create_global_step", "input_producer", "limit_epochs",
    "range_input_producer", "slice_input_producer",
):  # fmt: skip
    globals()[_name] = begins_graphs(globals()[_name])

__getattr__ = attribute_of("compat.v1.train")
