"""Record what TensorFlow makes of the cases of tests/tf/tf1_cases.py.

    TF_USE_LEGACY_KERAS=1 python tools/record_tf1_names.py tests/goldens/tf1_names.json

needs tensorflow and tf_keras.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tf"))

import tensorflow
from tensorflow.core.framework.summary_pb2 import Summary

import tf1_cases

tf = tensorflow.compat.v1


def pixels(png: bytes) -> Any:
    """Return the bytes of an image."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tensorflow.io.decode_png(png))


def main() -> None:
    """Write a JSON file."""
    tf.disable_v2_behavior()
    cases = {
        name: tf1_cases.told(tf1_cases.measured(tf, name, Summary, pixels))
        for name in tf1_cases.CASES
    }
    lines = [
        f"{json.dumps(name)}: {json.dumps(description)}" for name, description in cases.items()
    ]
    body = ",\n".join([f'"tensorflow": {json.dumps(tensorflow.__version__)}', *lines])
    Path(sys.argv[1]).write_text(f"{{\n{body}\n}}\n")


if __name__ == "__main__":
    main()
