"""`tf.compat.v1.nn`."""

from thalweg.tf.compat import legacy
from thalweg.tf.missing import attribute_of
from thalweg.tf.nn import *
from thalweg.tf.nn_v1 import *  # after `nn`, whose names it has

softmax_cross_entropy_with_logits = legacy.softmax_cross_entropy_with_logits
sparse_softmax_cross_entropy_with_logits = legacy.sparse_softmax_cross_entropy_with_logits
sigmoid_cross_entropy_with_logits = legacy.sigmoid_cross_entropy_with_logits
dropout = legacy.dropout
embedding_lookup = legacy.embedding_lookup

__getattr__ = attribute_of("compat.v1.nn")
