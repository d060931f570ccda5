"""`tf.compat.v1.train`: `tf.train`, whose global step is the graph's."""

from thalweg.tf.compat.behavior import begins_graphs
from thalweg.tf.missing import attribute_of
from thalweg.tf.train import *
from thalweg.tf.train import (
    create_global_step,
    get_or_create_global_step,
    input_producer,
    limit_epochs,
    range_input_producer,
    slice_input_producer,
)

create_global_step = begins_graphs(create_global_step)
get_or_create_global_step = begins_graphs(get_or_create_global_step)
input_producer = begins_graphs(input_producer)
limit_epochs = begins_graphs(limit_epochs)
range_input_producer = begins_graphs(range_input_producer)
slice_input_producer = begins_graphs(slice_input_producer)

__getattr__ = attribute_of("compat.v1.train")
