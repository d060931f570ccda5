"""`tf.data.experimental`: `AUTOTUNE`, which has no effect, as there is one thread."""

from thalweg.tf.missing import attribute_of

AUTOTUNE = -1

__getattr__ = attribute_of("data.experimental")
