"""`tf.linalg`: functions for training code; `torch.linalg` has the others."""

from thalweg.tf.arrays import eye
from thalweg.tf.clipping import global_norm
from thalweg.tf.matrices import *
from thalweg.tf.missing import attribute_of
from thalweg.tf.nn import l2_normalize
from thalweg.tf.reductions import norm

__getattr__ = attribute_of("linalg")
