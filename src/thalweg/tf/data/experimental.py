"""`tf.data.experimental`: a number that asks for as many threads as are good; there is one."""

from thalweg.tf.missing import attribute_of

AUTOTUNE = -1

__getattr__ = attribute_of("data.experimental")
