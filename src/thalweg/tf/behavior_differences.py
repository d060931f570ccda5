"""Names with behavior that differs from TensorFlow's, and short descriptions.

`thalweg scan` prints them for scripts; differences of Keras are not in this table.
"""

_NUMBERS = "random numbers are torch's: they repeat with a seed, but are not TensorFlow's"
_IGNORED = "accepted and ignored"
_RANKS = "one replica in each process, which torchrun starts"

# An entry applies to all names below it that have no entry.
CHANGED = {
    "distribute": _RANKS,
    "distribute.ReduceOp": "",
    "ConfigProto": _IGNORED,
    "RunOptions": _IGNORED,
    "device": "changes nothing: move modules and variables with .to(device)",
    "function": "returns the function as it is: nothing is traced, Python runs at every call",
    "glorot_uniform_initializer": _NUMBERS,
    "nn.dropout": _NUMBERS,
    "random": _NUMBERS,
    "random_normal_initializer": _NUMBERS,
    "random_uniform_initializer": _NUMBERS,
    "train.Saver": "writes one .safetensors file; reads TensorFlow's checkpoints as well",
    "truncated_normal_initializer": _NUMBERS,
}
