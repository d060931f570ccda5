"""Names whose behaviour differs from TensorFlow's, with a short description of the difference.

`thalweg scan` prints these for scripts; it knows the differences of Keras without this table.
"""

_NUMBERS = "random numbers are torch's: they repeat with a seed, but are not TensorFlow's"
_IGNORED = "accepted and ignored"
_RANKS = "one replica in each process, which torchrun starts"

# A name counts for all that is below it, where a longer one does not say otherwise.
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
