"""`tf.version`: the emulated TensorFlow version, for code that depends on it.

2.16 is the first release whose `tf.keras` is Keras 3, as it is here; the optimizers of the releases
before it, which code then looks for in `tf.keras.optimizers.legacy`, are there. 1.15, which
`tf.compat.v1` names, is the last of TensorFlow 1. Thalweg's own version is `thalweg.__version__`.
"""

from thalweg.version import __version__ as _own

VERSION = "2.16.0"
GIT_VERSION = f"thalweg-{_own}"
COMPILER_VERSION = ""
