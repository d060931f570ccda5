"""Trainings of each face, whose every part a change may reach."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import thalweg
from thalweg import IndexedSlices, Variable, _graph, diagnostics, keras, v1
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg.openseq2seq.optimizers import optimize_loss

HALF = (torch.float16, torch.bfloat16)
KERAS: list[Callable[[], Any]] = [
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    lambda: keras.optimizers.Adam(0.1),
    lambda: keras.optimizers.Adam(0.1, amsgrad=True, clipnorm=1.0),
    lambda: keras.optimizers.RMSprop(0.1, centered=True, clipvalue=0.5),
    lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    lambda: keras.optimizers.Nadam(0.1, global_clipnorm=1.0),
    lambda: keras.optimizers.Adagrad(0.1),
]
V1: list[Callable[[Any], Any]] = [
    v1.train.GradientDescentOptimizer,
    lambda rate: v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    v1.train.AdamOptimizer,
    v1.train.AdagradOptimizer,
    lambda rate: v1.train.RMSPropOptimizer(rate, momentum=0.5),
    v1.train.FtrlOptimizer,
]
STEPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Momentum", {"momentum": 0.9}, {}),
    ("Momentum", {"momentum": 0.9}, {"clip_gradients": 1.0}),
    ("Adam", {}, {"larc_params": {"larc_eta": 0.01}}),
    ("Adam", {}, {"clip_gradients": 2.0}),
]
MASTER, SUM = "master", "sum"  # what `optimize_loss` keeps beside slots


class Training:
    """Variables under an optimizer, and the gradients of the next step.

    Args:
        dice: Draws it; the same dice draw the same training.
        is_twin: Whether it steps by the reference engine, with nothing kept from step to step.
    """

    face = ""
    adds_up = False  # whether a step may only add gradients to sums, which stay if it is refused
    waits = False  # whether the last step has only done that

    def __init__(self, dice: random.Random, is_twin: bool) -> None:
        self.is_twin = is_twin
        self.denormals: Any = None
        self.rate = Variable(0.1, "rate", trainable=False)
        self.count = Variable(torch.zeros((), dtype=torch.int64), "count", trainable=False)
        self.variables = [self._variable(dice, k) for k in range(dice.choice([1, 2, 3, 5]))]
        self.gradients: list[Any] = []
        self.group = list(range(len(self.variables)))  # which variables a step is over
        self.held: list[Tensor] = []  # slots that were asked for long ago
        self.undo: list[Callable[[], None]] = []  # of the last change, should it be refused
        self.is_cut = False
        self.is_skipping = False  # whether steps only add gradients up, where they can
        self.before: dict[str, Any] = {}  # bits as they were before storages were cut
        self.opt: Any = self._made(dice)
        self.choose(None)
        if isinstance(self.stepping, SlotOptimizer):
            interval = dice.choice([0, 0, 1, 3])
            if interval and not is_twin:  # until it is copied
                diagnostics.attach(self.opt, interval)
        self.renew(dice)

    def _variable(self, dice: random.Random, number: int) -> Any:
        shape = dice.choice([(4, 4), (4, 4), (3, 5), (8,), (), (2, 3, 2), (40, 3), (0, 2)])
        kind = dice.choice([torch.float32] * 6 + [torch.float64, *HALF])
        value = numbers(shape, kind, dice)
        if not number and dice.random() < 0.4:  # one without a name is enough
            return torch.nn.Parameter(value)
        return Variable(value, f"w{number}")

    def _made(self, dice: random.Random) -> Any:
        raise NotImplementedError

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        raise NotImplementedError

    def choose(self, engine: Any) -> None:
        self.stepping.engine = "reference" if self.is_twin else engine

    @property
    def stepping(self) -> Any:
        return self.opt

    def renew(self, dice: random.Random) -> None:
        self.gradients = [numbers(var.shape, var.dtype, dice) for var in self.variables]

    def forget(self) -> None:
        self.stepping._plans = type(self.stepping._plans)()

    def step(self) -> None:
        if self.is_twin:
            self.forget()
        with thalweg.engine(denormals=self.denormals):
            grads = [self.gradients[place] for place in self.group]
            self._apply(grads, [self.variables[place] for place in self.group])

    def added(self, error: Exception) -> tuple[str, ...]:
        """Ends of the names of what changed though a step was refused: sums, if it says so."""
        return ()

    def take_back(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        self.is_cut = False

    def repair(self, dice: random.Random) -> None:
        self.take_back()
        self.group = list(range(len(self.variables)))
        self.renew(dice)

    def set_rate(self, value: float) -> None:
        self.rate.assign(value)

    def add(self, value: Tensor) -> None:
        """Add a variable of a new name."""
        self.variables.append(Variable(value, f"w{len(self.variables)}"))

    def save(self) -> dict[str, Any]:
        return self.opt.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self.opt.load_state_dict(state)

    def slot_names(self) -> list[str]:
        return self.opt.get_slot_names()

    def slot(self, place: int, name: str) -> Any:
        return self.opt.get_slot(self.variables[place], name)

    def remembered(self) -> dict[str, Any]:
        tensors = flat(self.opt.state_dict())
        tensors |= {f"variable {k}": var.detach() for k, var in enumerate(self.variables)}
        return {**tensors, "count": self.count.detach()}

    def bits(self) -> dict[str, Any]:
        tensors = self.remembered()
        for place, grad in enumerate(self.gradients):
            if isinstance(grad, Tensor) and grad.layout == torch.strided and not grad.is_meta:
                tensors[f"gradient {place}"] = grad.detach()
        return {name: _bits(value) for name, value in tensors.items()}

    def copied(self, mode: str) -> None:
        parts = (self.opt, self.variables, self.rate, self.count)
        copies = copy.deepcopy(parts) if mode == "deepcopy" else pickle.loads(pickle.dumps(parts))
        self.opt, self.variables, self.rate, self.count = copies
        self.held.clear()


class KerasTraining(Training):
    """`apply_gradients` of Keras."""

    face = "keras"

    def _made(self, dice: random.Random) -> Any:
        return dice.choice(KERAS)()

    def set_rate(self, value: float) -> None:
        self.opt.learning_rate = value

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        self.opt.apply_gradients(list(zip(gradients, variables, strict=True)))


class V1Training(Training):
    """`apply_gradients` of TensorFlow 1, which counts."""

    face = "v1"

    def _made(self, dice: random.Random) -> Any:
        return dice.choice(V1)(self.rate)

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        self.opt.apply_gradients(list(zip(gradients, variables, strict=True)), self.count)


class LossTraining(Training):
    """A step of `optimize_loss`, with gradients from elsewhere."""

    face = "optimize_loss"

    def _made(self, dice: random.Random) -> Any:
        name, params, options = dice.choice(STEPS)
        if dice.random() < 0.4 and "larc_params" not in options:
            options = {**options, "dtype": "mixed", "loss_scaling": dice.choice([8.0, "Backoff"])}
        if dice.random() < 0.3:
            options = {**options, "iter_size": 2, "skip_update_ph": lambda: self.is_skipping}
        return optimize_loss(
            lambda: None, name, params, lambda _: self.rate.detach().clone(),
            var_list=self.variables, global_step=self.count, **options,
        )  # fmt: skip

    @property
    def stepping(self) -> Any:
        return self.opt._inner

    def slot_names(self) -> list[str]:
        slots = self.stepping.get_slot_names()
        masters = [MASTER] if self.opt._masters.pairs() else []
        return [*slots, *masters, *([SUM] if slots and self.opt._accumulators else [])]

    def slot(self, place: int, name: str) -> Any:
        var = self.variables[place]
        master = self.opt._masters.get(var)
        if name == MASTER:
            return var if master is None else master
        if name == SUM:
            return self.opt._accumulators.get(var if master is None else master)
        return self.opt.optimizer.get_slot(var, name)

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        self.opt.apply_gradients(gradients)


class SessionTraining(Training):
    """A session of a graph: its tensors in place of variables, gradients that are fed."""

    face = "session"

    def __init__(self, dice: random.Random, is_twin: bool) -> None:
        self.graph, self._fed, self._ops = _graph.Graph(), [], {}
        self.session = _graph.Session(graph=self.graph)
        super().__init__(dice, is_twin)

    def _made(self, dice: random.Random) -> Any:
        values = [var.detach() for var in self.variables]
        with self.graph.as_default():
            self._rate = v1.Variable(0.1, trainable=False, name="rate")
            self._count = v1.train.get_or_create_global_step()
            self._symbols = [v1.Variable(value, name=f"w{k}") for k, value in enumerate(values)]
            optimizer = dice.choice(
                [*KERAS, *[lambda make=make: make(self._rate) for make in V1]]
            )()
        self._initialize()
        self.count = self.session.leaf(self._count)
        self.variables = [self.session.leaf(symbol) for symbol in self._symbols]
        return optimizer

    def _initialize(self) -> None:
        """Set the first value of each variable that has none."""
        with self.graph.as_default():
            new = [v for v in _graph.global_variables() if not self.session.is_initialized(v)]
            self.session.run([v.initializer for v in new])

    def set_rate(self, value: float) -> None:
        if isinstance(self.opt, v1.train.Optimizer):
            self._rate.load(value, self.session)

    def add(self, value: Tensor) -> None:
        with self.graph.as_default():
            self._symbols.append(v1.Variable(value, name=f"w{len(self._symbols)}"))
        self._initialize()
        self.variables.append(self.session.leaf(self._symbols[-1]))

    def save(self) -> dict[str, Any]:
        variables = self.graph.get_collection(_graph.GraphKeys.GLOBAL_VARIABLES)
        return {var.name: torch.as_tensor(self.session.leaf(var)).clone() for var in variables}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.graph.as_graph_element(name).load(value, self.session)

    def forget(self) -> None:
        super().forget()
        self.session._plans.clear()

    def slot(self, place: int, name: str) -> Any:
        return self.session.leaf(self.opt.get_slot(self._symbols[place], name))

    def remembered(self) -> dict[str, Any]:
        variables = self.graph.get_collection(_graph.GraphKeys.GLOBAL_VARIABLES)
        return {var.name: self.session.leaf(var).detach() for var in variables}

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        key = tuple(k for k in self.group if self.gradients[k] is not None)
        if key not in self._ops:
            with self.graph.as_default():
                feeds = [_graph.placeholder(self._symbols[k].dtype) for k in key]
                pairs = [(feed, self._symbols[k]) for feed, k in zip(feeds, key, strict=True)]
                count = () if isinstance(self.opt, keras.optimizers.Optimizer) else (self._count,)
                self._ops[key] = feeds, self.opt.apply_gradients(pairs, *count)
            self._initialize()
        feeds, op = self._ops[key]
        grads = [grad for grad in gradients if grad is not None]
        self.session.run(op, dict(zip(feeds, grads, strict=True)))


FACES = (KerasTraining, V1Training, LossTraining, SessionTraining)


def numbers(shape: Any, dtype: torch.dtype, dice: random.Random) -> Tensor:
    generator = torch.Generator().manual_seed(dice.randrange(2**32))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def rows(var: Tensor, dice: random.Random) -> IndexedSlices:
    count = dice.choice([0, 1, 3, 7])
    indices = [dice.randrange(max(1, var.shape[0])) for _ in range(count if var.shape[0] else 0)]
    values = numbers((len(indices), *var.shape[1:]), var.dtype, dice)
    return IndexedSlices(values, torch.tensor(indices, dtype=torch.int64), tuple(var.shape))


def flat(state: Any, prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{key}/")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _bits(value: Any) -> Any:
    """Return a value as something that is equal to itself only; every NaN is one."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.layout == torch.sparse_coo:
        return [_bits(value._indices()), _bits(value._values())]
    dense = value.resolve_neg().clone(memory_format=torch.contiguous_format).as_subclass(Tensor)
    if dense.is_floating_point():
        dense.masked_fill_(dense != dense, torch.nan)
    return (dense.dtype, tuple(dense.shape), dense.view(-1).view(torch.uint8).numpy().tobytes())
