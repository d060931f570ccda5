"""`tf.math`."""

from thalweg.tf.elementwise import *
from thalweg.tf.missing import attribute_of
from thalweg.tf.nn import l2_normalize, log_softmax, softmax, softsign
from thalweg.tf.reductions import *
from thalweg.tf.segments import *
from thalweg.tf.slicing import invert_permutation

__getattr__ = attribute_of("math")
