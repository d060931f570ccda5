"""The tool that runs TensorFlow's own tests from checkouts of its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "tensorflow_tests.py"

OF_TENSORFLOW_1 = """
from tensorflow.python.eager import context
from tensorflow.python.framework import constant_op, test_util
from tensorflow.python.ops import math_ops
from tensorflow.python.platform import test
from tensorflow.python.training import adam, supervisor


class Tests(test.TestCase):
    @test_util.run_deprecated_v1
    def test_graph(self):
        total = math_ops.add(constant_op.constant(1.0), 2.0)
        self.assertFalse(context.executing_eagerly())
        self.assertEqual(self.evaluate(total), 3.0)

    @test_util.run_in_graph_and_eager_modes
    def test_both(self):
        self.assertAllClose(self.evaluate(constant_op.constant([1.0])), [1.0])

    def test_wrong(self):
        self.assertEqual(adam.AdamOptimizer().get_name(), "SGD")

    def test_lacking(self):
        supervisor.Supervisor()

    def test_skipped(self):
        self.skipTest("no reason")
"""
OF_KERAS = """
import tensorflow.compat.v2 as tf
from absl.testing import parameterized
from tf_keras.optimizers.legacy import adam
from tf_keras.testing_infra import test_combinations


@test_combinations.generate(test_combinations.combine(mode=["graph", "eager"]))
class Both(tf.test.TestCase, parameterized.TestCase):
    def test_mode(self):
        self.assertEqual(adam.Adam().get_config()["name"], "Adam")


class Each(tf.test.TestCase, parameterized.TestCase):
    @test_combinations.generate(
        test_combinations.times(
            test_combinations.combine(mode="eager", rate=[0.1, 0.2]),
            test_combinations.combine(beta=0.5),
        )
    )
    def test_rate(self, rate, beta):
        self.assertTrue(tf.executing_eagerly())
        self.assertEqual(adam.Adam(rate, beta_1=beta).get_config()["beta_1"], beta)
        self.assertEqual(rate, 0.1)
"""
EXPECTED = """\
tensorflow/python/training/adam_test.py 1 failed, 1 lacking, 2 passed, 1 skipped
  lacking Tests.test_lacking: AttributeError: Thalweg has no \
tensorflow.python.training.supervisor.Supervisor.
  failed Tests.test_wrong: AssertionError: 'Adam' != 'SGD'
tensorflow/python/training/quantize_training_test.py excluded: rewriting of graphs
tf_keras/optimizers/legacy/adam_test.py 1 failed, 3 passed
  failed Each.test_rate_1: AssertionError: 0.2 != 0.1
1 excluded files, 2 failed, 1 lacking, 5 passed, 1 skipped
"""


@pytest.mark.slow
def test_report_prints_counts_and_failures(tmp_path: Path) -> None:
    files = {
        "tensorflow/python/training/adam_test.py": OF_TENSORFLOW_1,
        "tensorflow/python/training/supervisor.py": "",
        "tensorflow/python/training/quantize_training_test.py": "raise ValueError",
        "tf_keras/optimizers/legacy/adam_test.py": OF_KERAS,
        "tf_keras/optimizers/legacy/adam.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    report = tmp_path / "report.json"
    command = [sys.executable, TOOL, tmp_path, "--report", report]
    process = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert (process.stdout, process.stderr) == (EXPECTED, "")
    assert "Supervisor()" in report.read_text()
