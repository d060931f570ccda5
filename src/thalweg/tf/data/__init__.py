"""`tf.data`: datasets read in this process, element by element.

For files, several processes and pinned memory use `torch.utils.data`.
"""

from thalweg.tf.data import experimental
from thalweg.tf.data.dataset import Dataset
from thalweg.tf.data.iterators import (
    Iterator,
    make_initializable_iterator,
    make_one_shot_iterator,
)
from thalweg.tf.data.spec import get_output_shapes, get_output_types
from thalweg.tf.missing import attribute_of

AUTOTUNE = experimental.AUTOTUNE

__getattr__ = attribute_of("data")
