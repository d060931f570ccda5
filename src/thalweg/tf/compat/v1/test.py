"""`tf.test` of TensorFlow 1: its tests are in graph mode; see `thalweg.tf.compat.v1`."""

from thalweg._graph.default_graph import begin_graphs
from thalweg.tf import test
from thalweg.tf.missing import attribute_of
from thalweg.tf.test import (
    get_temp_dir,
    gpu_device_name,
    is_built_with_cuda,
    is_built_with_gpu_support,
    is_gpu_available,
    main,
    mock,
)


class TestCase(test.TestCase):
    """`thalweg.tf.test.TestCase` that begins graph mode if no mode was chosen."""

    def setUp(self) -> None:
        begin_graphs()
        super().setUp()


__getattr__ = attribute_of("compat.v1.test")
