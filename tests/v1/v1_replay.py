"""Replay recorded cases of TensorFlow 1 through the v1 optimizers, eagerly and in sessions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import thalweg
from golden_files import Case, array_of, arrays_of, cases_of
from replay import Value
from thalweg import IndexedSlices
from thalweg import v1 as tf
from thalweg.v1 import train

cases = partial(cases_of, "v1")
array = partial(array_of, "v1")


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values)


def gradient(case: Case, name: str, step: int) -> Any:
    """Return the gradient fed to a variable at a step, counted from 1."""
    if step in case.get("none_steps", {}).get(name, ()):
        return None
    if case["vars"][name]["grad"] == "dense":
        return _tensor(array(case, "grad", name)[step - 1])
    split = array(case, "gsplit", name)
    part = slice(split[step - 1], split[step])
    values, indices = array(case, "gval", name)[part], array(case, "gidx", name)[part]
    return IndexedSlices(_tensor(values), _tensor(indices.astype(np.int64)))


def calls(case: Case) -> bool:
    """Return whether a hyperparameter is a callable; a graph calls it once, when it is built."""
    return any(isinstance(value, dict) for value in case["kwargs"].values())


class Eager:
    """The optimizer and the variables of a case in eager mode."""

    def __init__(self, case: Case, engine: str) -> None:
        self.case = case
        self.step = 0
        start = torch.tensor(case.get("global_step", {}).get("initial", 0))
        self.global_step = self._variable(start, "global_step", trainable=False)
        self.variables = {
            name: self._variable(
                _tensor(array(case, "var", name)[0]), name, constraint=self._bounds(name)
            )
            for name in case["order"]
        }
        self.optimizer = self._optimizer()
        self.optimizer.engine = engine

    def _variable(self, value: Any, name: str, **options: Any) -> Any:
        return thalweg.Variable(value, name, **options)

    def _bounds(self, name: str) -> Any:
        bounds = self.case.get("constraint", {}).get(name)
        return None if bounds is None else lambda x: torch.clamp(x, *bounds)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, dict):
            return lambda: value["callable"][self.step - 1]
        exact = self.case.get("hyper_np64") and isinstance(value, float)
        return np.float64(value) if exact else value

    def _optimizer(self) -> Any:
        case = self.case
        kwargs = {key: self._argument(value) for key, value in case["kwargs"].items()}
        decay = case.get("global_step", {})
        if "decay_fn" in decay:
            function = getattr(train, decay["decay_fn"])
            kwargs["learning_rate"] = function(
                global_step=self.global_step, **decay["decay_kwargs"]
            )
        if case["optimizer"] == "AdagradDAOptimizer":
            kwargs["global_step"] = self.global_step
        return getattr(train, case["optimizer"])(**kwargs)

    @property
    def counted(self) -> Any:
        """The global step, if it is given to `apply_gradients`."""
        return self.global_step if self.case.get("global_step", {}).get("increment", True) else None

    def take(self) -> None:
        """Take one step."""
        self.step += 1
        grads = {name: gradient(self.case, name, self.step) for name in self.variables}
        self.apply(grads)

    def apply(self, grads: dict[str, Any]) -> None:
        pairs = [(grads[name], var) for name, var in self.variables.items()]
        self.optimizer.apply_gradients(pairs, global_step=self.counted)

    def decide(self, rows: Any, grad_loss: Any, loss: Any) -> None:
        """Choose what `minimize` minimizes."""
        var_list, opt = list(self.variables.values()), self.optimizer
        self.minimize = lambda: opt.minimize(
            lambda: loss(*var_list, rows), var_list=var_list, grad_loss=grad_loss
        )

    def read(self, var: Any) -> np.ndarray:
        return np.asarray(var.numpy()).copy()

    def write(self, var: Any, value: np.ndarray) -> None:
        var.assign(np.array(value))


class InGraph(Eager):
    """The optimizer and the variables of a case in a graph, and a session for it."""

    def __init__(self, case: Case, engine: str) -> None:
        self.graph = tf.Graph()
        self.session = tf.Session(graph=self.graph)
        self._initialized: set[Any] = set()
        self._operations: dict[Any, Any] = {}
        self._places: dict[str, Any] = {}
        with self.graph.as_default():
            super().__init__(case, engine)

    def _variable(self, value: Any, name: str, **options: Any) -> Any:
        return tf.Variable(value, name=name, **options)

    def _place(self, name: str) -> Any:
        """Return the placeholder that feeds a gradient, or slices of two placeholders."""
        if name not in self._places:
            dtype, variable = self.variables[name].dtype, self.case["vars"][name]
            if variable["grad"] == "dense":
                self._places[name] = tf.placeholder(dtype, variable["shape"])
            else:
                rows = tf.placeholder(dtype, [None, *variable["shape"][1:]])
                self._places[name] = tf.SymbolicSlices(rows, tf.placeholder("int64", [None]))
        return self._places[name]

    def apply(self, grads: dict[str, Any]) -> None:
        gradients = {name: grad for name, grad in grads.items() if grad is not None}
        with self.graph.as_default():
            if tuple(gradients) not in self._operations:
                places = {name: self._place(name) for name in gradients}
                pairs = [(places.get(name), var) for name, var in self.variables.items()]
                train_op = self.optimizer.apply_gradients(pairs, global_step=self.counted)
                self._operations[tuple(gradients)] = train_op
            self._initialize()
        feeds: dict[Any, Any] = {}
        for name, grad in gradients.items():
            place = self._places[name]
            if isinstance(grad, IndexedSlices):
                feeds |= {place.values: grad.values, place.indices: grad.indices}
            else:
                feeds[place] = grad
        self.session.run(self._operations[tuple(gradients)], feeds)

    def _initialize(self) -> None:
        """Initialize what has been made since the last time."""
        new = [var for var in tf.global_variables() if var not in self._initialized]
        self.session.run([var.initializer for var in new])
        self._initialized |= set(new)

    def decide(self, rows: Any, grad_loss: Any, loss: Any) -> None:
        var_list = list(self.variables.values())
        with self.graph.as_default():
            op = self.optimizer.minimize(
                loss(*var_list, rows), var_list=var_list, grad_loss=grad_loss
            )
            self._initialize()
        self.minimize = lambda: self.session.run(op)

    def read(self, var: Any) -> np.ndarray:
        return np.asarray(self.session.run(var))

    def write(self, var: Any, value: np.ndarray) -> None:
        var.load(np.array(value), self.session)


FACES = {"eager": Eager, "graph": InGraph}


def replay(case: Case, face: str, engine: str, resume: bool = False) -> Iterator[Value]:
    """Run a trajectory; yields every variable, slot and counter after each step.

    With `resume` each step starts from TensorFlow's state, so that differences do not add up.
    """
    run = FACES[face](case, engine)
    for step in range(1, case["steps"] + 1):
        run.take()
        for label, var, golden in _state(run):
            if var is None:  # not created yet: there is nothing but NaN in the recording
                yield Value(label, np.full_like(golden[step], np.nan), *golden[[step, step - 1]])
                continue
            yield Value(f"{label} after step {step}", run.read(var), *golden[[step, step - 1]])
            if resume:
                run.write(var, golden[step])


def _state(run: Eager) -> list[tuple[str, Any, np.ndarray]]:
    case, opt = run.case, run.optimizer
    state = [(name, var, array(case, "var", name)) for name, var in run.variables.items()]
    for name, var in run.variables.items():
        for slot in case["slots"].get(name, case.get("slot_names", ())):
            golden = array(case, "slot", name, slot)
            state.append((f"{name}/{slot}", opt.get_slot(var, slot), golden))
    graph = getattr(run, "graph", None)
    for name in case["nonslot"]:
        state.append((name, opt._get_non_slot_variable(name, graph), array(case, "nonslot", name)))
    if f"{case['id']}|iterations" in arrays_of("v1"):
        steps = array(case, "iterations").astype(np.int64)  # recorded as int32, to save space
        state.append(("global_step", run.global_step, steps))
    return state


def minimized(case: Case, face: str, engine: str) -> Iterator[Value]:
    """Run a recorded `minimize`, gradients and all; yields the variables after each step."""
    run = FACES[face](case, engine)
    matrix, target, weight = (_tensor(array(case, "const", name)) for name in ("A", "y", "c"))
    rows = _tensor(array(case, "const", "ix").astype(np.int64))
    grad_loss = _tensor(array(case, "const", "grad_loss")) if case["grad_loss"] else None

    def loss(w: Any, emb: Any, unused: Any, rows: Any) -> Any:
        square = (matrix @ w - target) ** 2
        lookup = tf.embedding_lookup if face == "graph" else thalweg.embedding_lookup
        return (square if case["grad_loss"] else square.mean()) + (lookup(emb, rows) * weight).sum()

    run.decide(rows, grad_loss, loss)
    for step in range(1, case["steps"] + 1):
        run.minimize()
        for name, var in run.variables.items():
            golden = array(case, "var", name)
            yield Value(f"{name} after step {step}", run.read(var), *golden[[step, step - 1]])


def decayed(case: Case, face: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the learning rates of a recorded decay function, and TensorFlow's."""
    steps, golden = array(case, "steps"), array(case, "values")
    kwargs = dict(case["kwargs"])
    counter = "x" if "boundaries" in kwargs else "global_step"
    function = getattr(train, case["fn"])
    rates = _rates_of_graph if face == "graph" else _rates
    return rates(function, counter, kwargs, case["step_dtype"], steps), golden


def _rates(function: Any, counter: str, kwargs: Any, dtype: str, steps: Any) -> Any:
    step = thalweg.Variable(np.zeros((), dtype), trainable=False)
    rate = function(**{counter: step}, **kwargs)
    return np.array([rate() for _ in map(step.assign, map(int, steps))])


def _rates_of_graph(function: Any, counter: str, kwargs: Any, dtype: str, steps: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(dtype, [])
        rate = function(**{counter: step}, **kwargs)
        return np.array([session.run(rate, {step: int(step_value)}) for step_value in steps])
