"""Modules that a process loads to train with Keras' optimizers alone, and later imports."""

from __future__ import annotations

import pytest

from fresh_process import run

BEGINNING = """
import sys, torch, thalweg
from thalweg import keras

class Mine(keras.optimizers.SGD):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)

class Hooked(keras.optimizers.SGD):
    def _resource_apply_dense(self, grad, var, apply_state=None):
        return super()._resource_apply_dense(grad * 2, var, apply_state)

w = thalweg.Variable([1.0, 2.0], name="w")
opts = [Mine(0.5), Hooked(0.25), keras.optimizers.SGD(0.5), keras.optimizers.Adam(0.5)]
for opt in opts:
    opt.minimize(lambda: (w * w).sum(), [w])
    opt.apply_gradients([(torch.ones(2), w)])
    opt.apply_gradients([(thalweg.IndexedSlices(torch.ones(1), torch.tensor([1])), w)])
    opt.set_weights(opt.get_weights())
    opt.load_state_dict(opt.state_dict())
    assert keras.backend.get_value(opt.iterations) == 3
opt.lr = 0.25
opt.add_weight("beside", ())
opt.get_config(), repr(opt)
loaded = {name for name in sys.modules if name.startswith("thalweg.")}
"""

MODULES = """
beyond = ("graph", "v1", "openseq2seq", "tf", "distribute.strategy", "distribute.ranks")
assert not [name for name in loaded for each in beyond if f"{name}.".startswith(f"thalweg.{each}.")]
"""

GRAPHS_AFTERWARDS = """
import thalweg._graph as tg

for opt in opts:
    with tg.Graph().as_default():
        v = tg.Variable([1.0, 2.0], name="v")
        step = opt.minimize(tg.constant(3.0) * v, [v])
        with tg.Session() as session:
            session.run(tg.global_variables_initializer())
            session.run(step)
            value = session.run(v)
    if opt is not opts[-1]:
        assert value.tolist() == [-0.5, 0.5], value
    assert opt.iterations == 4
    assert opt.apply_gradients([(torch.ones(2), w)]) == 5
"""

NO_GRAPHS = """
from thalweg.errors import FailedPreconditionError

keras.backend.set_session(None)
try:
    keras.backend.get_session()
except FailedPreconditionError as error:
    assert "Import what makes them first" in str(error)
else:
    raise AssertionError
import thalweg._graph as tg
assert keras.backend.get_session().graph is tg.get_default_graph()
"""

REPLICAS = """
from thalweg.distribute import Strategy

before = [each.iterations.item() for each in opts]
strategy = Strategy()
for opt in opts:
    strategy.run(lambda: opt.minimize(lambda: (w * w).sum(), [w]))
    try:
        with strategy.scope():
            opt.apply_gradients([(torch.ones(2), w)])
    except RuntimeError as error:
        assert "cross-replica" in str(error)
    else:
        raise AssertionError
assert [each.iterations.item() - 1 for each in opts] == before
assert not any(name.startswith("thalweg._graph") for name in sys.modules)
"""


@pytest.mark.parametrize("continuation", [MODULES, GRAPHS_AFTERWARDS, NO_GRAPHS, REPLICAS])
def test_optimizer_created_before_graph_import_works_in_graphs(continuation: str) -> None:
    process = run(BEGINNING + continuation)
    assert process.returncode == 0, process.stderr
