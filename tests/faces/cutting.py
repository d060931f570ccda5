"""Trainings in which a function of the user's cuts memory that the step has looked at.

A wrong one ends the process, so `attempt` is called by `attack.server`, in a child.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg import Hyper, IndexedSlices, Rule, Slot, Variable, keras, v1
from thalweg.keras.optimizers import RuleOptimizer, schedules
from thalweg.openseq2seq.optimizers import optimize_loss

ROWS, STEADY = 64, 3
Cut = Callable[..., Any]


def own_rule(name: str, **keywords: Any) -> RuleOptimizer:
    def update(var: Any, grad: Any, m: Any, *, scale: Any) -> Any:
        return var - scale * grad, m + grad

    hypers, slots = (Hyper("learning_rate", 0.1),), (Slot("m"),)
    rule = Rule(name=name, update=update, hypers=hypers, slots=slots, **keywords)
    return RuleOptimizer(rule, learning_rate=0.1)


def preparing(cut: Cut) -> RuleOptimizer:
    def prepare(*, learning_rate: Any) -> Any:
        cut()
        return {"scale": learning_rate}

    return own_rule("Preparing", prepare=prepare)


def measuring(cut: Cut) -> RuleOptimizer:
    def squares(var: Any, grad: Any, m: Any) -> Any:
        return grad * grad

    def per_variable(*, squares: Any) -> Any:
        cut()
        return {"scale": 0 * squares + 0.1}

    return own_rule("Measuring", measures={"squares": squares}, per_variable=per_variable)


class Schedule(schedules.LearningRateSchedule):
    def __init__(self, cut: Cut) -> None:
        self.cut = cut

    def __call__(self, step: Any) -> Any:
        self.cut()
        return 0.1


def overriding(base: Any, hook: str) -> Callable[[Cut], Any]:
    """Return an optimizer of which one hook cuts, and does what it did."""

    def make(cut: Cut) -> Any:
        def hooked(self: Any, *args: Any, **keywords: Any) -> Any:
            cut()
            return getattr(base, hook)(self, *args, **keywords)

        return type("Own", (base,), {hook: hooked})(0.1)

    return make


KERAS, V1 = keras.optimizers.Adam, v1.train.AdamOptimizer
KERAS_HOOKS = (
    "_create_slots", "_prepare", "_prepare_local", "_decayed_lr", "_aggregate_gradients",
    "_transform_gradients", "_resource_apply_dense", "_resource_apply_sparse",
)  # fmt: skip
V1_HOOKS = ("_create_slots", "_prepare", "_apply_dense", "_apply_sparse")
MAKE: dict[str, Callable[[Cut], Any]] = {
    "callable": KERAS,
    "schedule": lambda cut: KERAS(Schedule(cut)),
    "aggregator": lambda cut: KERAS(0.1, gradient_aggregator=cut),
    "transformer": lambda cut: KERAS(0.1, gradient_transformers=[cut]),
    "callable of v1": V1,
    "prepare": preparing,
    "per_variable": measuring,
    **{hook: overriding(KERAS, hook) for hook in KERAS_HOOKS},
    **{f"{hook} of v1": overriding(V1, hook) for hook in V1_HOOKS},
}
VICTIMS = ("variable", "slot", "gradient")


def outcome(step: Callable[[], Any], tensors_of: Callable[[], list[Tensor]]) -> str:
    """Return the outcome of a step: "refused" (nothing changed), "taken", or a description."""
    initial = [tensor.detach().clone() for tensor in tensors_of()]
    try:
        step()
    except Exception as error:
        if not any(word in str(error).lower() for word in ("memory", "not resizable")):
            return f"{type(error).__name__}: {error}"
        is_equal = all(map(torch.equal, tensors_of(), initial))
        return "refused" if is_equal else f"half a step: {error}"
    return "taken"


def updating(name: str, victim: str, sparse: bool, steps: int) -> str:
    """Cut in a hook, or in a function that a step reads."""
    armed: list[Tensor] = []
    calls: list[int] = []

    def cut(pairs: Any = None) -> Any:
        calls.append(1)
        for tensor in armed:
            tensor.untyped_storage().resize_(0)
        return 0.1 if pairs is None else pairs

    opt = MAKE[name](cut)
    w, witness = (Variable(torch.ones(ROWS, 16), name=title) for title in ("w", "other"))
    grad: Any = torch.ones(ROWS, 16)
    if sparse:
        grad = IndexedSlices(torch.ones(4, 16), torch.arange(4), (ROWS, 16))
    pairs = [(torch.ones(ROWS, 16), witness), (grad, w)]
    for _ in range(steps):
        opt.apply_gradients(pairs)
    victims = {"variable": lambda: w, "slot": lambda: opt.get_slot(w, "m")}
    victims["gradient"] = lambda: grad.values if sparse else grad
    armed.append(victims[victim]())
    calls.clear()
    message = outcome(lambda: opt.apply_gradients(pairs), lambda: [witness])
    return message if calls or message != "taken" else "not called"


def constrained(face: str, victim: str, twice: bool) -> str:
    """Cut in a constraint."""
    armed: list[Any] = []

    def constraint(value: Tensor) -> Tensor:
        copy = value.detach().clone()
        for tensor in armed:
            (copy if tensor is None else tensor).untyped_storage().resize_(0)
        return value if armed and armed[0] is value else copy

    opt: Any = {"keras": KERAS, "v1": V1}[face](0.1)
    w = Variable(torch.ones(ROWS), name="w", constraint=constraint)
    witness = Variable(torch.ones(ROWS), name="other", constraint=lambda value: value * 1)
    count = Variable(torch.zeros((), dtype=torch.int64), name="count", trainable=False)
    pairs = [(torch.ones(ROWS), w), (torch.ones(ROWS), witness)]
    pairs += pairs[:1] if twice else []
    extra = {"global_step": count} if face == "v1" else {}
    for _ in range(STEADY):
        opt.apply_gradients(pairs, **extra)
    victims = {"variable": w, "other": witness, "value": None, "counter": count}
    victims["slot"] = opt.get_slot(w, "m")
    armed.append(victims[victim])
    return outcome(lambda: opt.apply_gradients(pairs, **extra), list)


def mixed(name: str, victim: str) -> str:
    """Cut in what `optimize_loss` calls; the loss itself reads nothing that is cut."""
    armed: list[Tensor] = []

    def cut(rate: Any = 0.1, *_: Any) -> Any:
        for tensor in armed:
            tensor.untyped_storage().resize_(0)
        return rate

    class Writer:
        def add_scalar(self, *_: Any, **__: Any) -> None:
            cut()

        add_histogram = add_scalar

    w = Variable(torch.ones(ROWS, dtype=torch.float16), name="w")
    options: dict[str, Any] = {
        "policy": {"learning_rate_decay_fn": lambda _: cut()},
        "skip": {"iter_size": 2, "skip_update_ph": lambda: bool(cut(0))},
        "writer": {"summary_writer": Writer(), "summaries": ["learning_rate", "gradient_norm"]},
    }[name]
    options = {"learning_rate_decay_fn": lambda _: 0.1, **options}
    step = optimize_loss(
        lambda: 0, "Adam", {}, var_list=[w], dtype="mixed", loss_scaling="Backoff",
        clip_gradients=1.0, **options,
    )  # fmt: skip
    opt: Any = step.optimizer
    grad = torch.ones(ROWS, dtype=torch.float16)
    for _ in range(2 * STEADY):
        step.apply_gradients([grad])
    master = opt.get_master(w)
    victims = {"variable": w, "master": master, "counter": step.global_step, "gradient": grad}
    victims["slot"] = opt.optimizer.get_slot(master, "m")
    armed.append(victims[victim])
    step_twice = lambda: (step.apply_gradients([grad]), step.apply_gradients([grad]))  # noqa: E731
    return outcome(step_twice, list)


def attempt(kind: str, *args: Any) -> str:
    """Return the outcome of one training."""
    run_case: Any = {"updating": updating, "constrained": constrained, "mixed": mixed}[kind]
    return run_case(*args)


def warm() -> None:
    """Set one thread, and no warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
