"""`tf.debugging`: assertions, and checks of numbers."""

from thalweg.tf.checks import *
from thalweg.tf.checks import check_numerics
from thalweg.tf.missing import attribute_of

assert_all_finite = check_numerics

__getattr__ = attribute_of("debugging")
