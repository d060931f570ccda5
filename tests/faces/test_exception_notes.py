"""Errors raised in a step state truly whether it was taken, in every front end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from failing_callable import NOT_TAKEN
from interruptions import outcome
from thalweg import IndexedSlices, Variable, keras, optim, v1
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.optim.step_in_backward import register_hooks

ALL_LINES = 10**9  # more lines than a step has
BACKWARD_NOTE = "Gradients were applied in the backward pass: the next call of step counts them."


def burnt(*_: Any) -> Any:
    raise ValueError("burnt")


def notes_of(step: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        step()
    return getattr(raised.value, "__notes__", [])


class Torchs:
    """Two parameters under an optimizer of torch's kind, after two of its steps."""

    def __init__(self, face: Any, **options: Any) -> None:
        self.params: list[Any] = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        self.opt = face([{"params": [param]} for param in self.params], lr=0.1, **options)
        for _ in range(2 * options.get("accumulate", 1)):
            self.give()
            self.opt.step()
        self.give()

    def give(self) -> None:
        for param in self.params:
            param.grad = torch.ones_like(param)

    def group(self, **options: Any) -> None:
        self.opt.param_groups[1] |= options

    def state(self) -> list[torch.Tensor]:
        states = [self.opt.state[param] for param in self.params]
        extra = [x for slots in states for name, x in slots.items() if name != "gradient_sum"]
        return [x.detach() for x in (*self.params, *extra) if x.untyped_storage().nbytes()]


def cut(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


TROUBLES: dict[str, Callable[[Torchs], Any]] = {
    "a gradient without memory": lambda case: cut(case.params[1].grad),
    "a rate that is no number": lambda case: case.group(lr="much"),
    "a rate that is NaN": lambda case: case.group(lr=float("nan")),
    "an option that is missing": lambda case: case.opt.param_groups[1].pop("lr"),
    "a state without memory": lambda case: cut(case.opt.state[case.params[1]]["step"]),
    "rows beyond the end": lambda case: setattr(
        case.params[1], "grad", torch.sparse_coo_tensor([[9]], [1.0], (3,), check_invariants=False)
    ),
    "found_inf that is no number": lambda case: setattr(case.opt, "found_inf", "much"),
}
FACES: dict[str, Callable[[], Torchs]] = {
    "Adam": lambda: Torchs(optim.Adam),
    "clipped": lambda: Torchs(optim.Adam, clip_grad_norm=1.0, ema_decay=0.5),
    "sums": lambda: Torchs(optim.Adam, accumulate=2),
    "tensorflow": lambda: Torchs(optim.tensorflow.Adam),
    "tensorflow sums": lambda: Torchs(optim.tensorflow.Adam, accumulate=2),
}
CASES = [
    (face, trouble)
    for face in FACES
    for trouble in TROUBLES
    if face.startswith("tensorflow") or trouble != "a rate that is NaN"  # which torch takes
]


@pytest.mark.parametrize(("face", "trouble"), CASES)
def test_rejected_step_error_notes_nothing_changed(face: str, trouble: str) -> None:
    case = FACES[face]()
    tensors_before = [tensor.clone() for tensor in case.state()]
    TROUBLES[trouble](case)
    notes = notes_of(lambda: [case.opt.step(), case.give(), case.opt.step()])
    assert NOT_TAKEN in notes
    assert "gradient_sum" in case.opt.state[case.params[0]] or not any("sums" in n for n in notes)
    assert all(any(map(partial(torch.equal, tensor), tensors_before)) for tensor in case.state())


def test_failing_closure_and_averages_block_have_notes() -> None:
    case = FACES["clipped"]()
    assert notes_of(lambda: case.opt.step(burnt)) == [NOT_TAKEN]
    with case.opt.swapped():
        assert notes_of(case.opt.step) == [NOT_TAKEN]


def test_accumulated_gradients_are_noted() -> None:
    note_count = 0
    for number in itertools.count(0, 3):
        case = FACES["sums"]()
        error, _ = outcome(number, case.opt.step)
        if error is None:
            break
        notes = getattr(error, "__notes__", [NOT_TAKEN])
        has_sum = case.opt.state[case.params[0]].get("gradient_sum") is not None
        has_note = notes[1:] and notes[1].startswith("The gradients were added to their sums")
        assert notes[0] == NOT_TAKEN
        assert has_sum or not has_note
        note_count += bool(has_note)
    assert note_count


def test_failing_torch_fallback_step_is_undone() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    opt = optim.Adam([param], differentiable=True)
    param.grad = torch.ones(3)
    notes = notes_of(opt.step)  # it writes to a leaf
    assert notes == [NOT_TAKEN]


@pytest.mark.parametrize("face", [optim.Adam, optim.tensorflow.Adam])
def test_note_reports_updates_of_the_backward_pass(face: Any) -> None:
    params: list[Any] = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    opt = face(params, lr=0.1, in_backward=True)
    (params[0] * params[1]).sum().backward()
    opt.step()
    initial = [param.detach().clone() for param in params]
    params_seen: list[Any] = []

    def trouble(param: Any) -> None:
        params_seen.append(param)
        if len(params_seen) == 2:
            cut(param.grad)

    for param in params:  # hooks are called in order
        opt.step_cache.heard.pop(id(param)).remove()
        param.register_post_accumulate_grad_hook(trouble)
    register_hooks(opt)
    notes = notes_of((params[0] * params[1]).sum().backward)
    assert notes == [BACKWARD_NOTE]
    changes = [not torch.equal(*pair) for pair in zip(params, initial, strict=True)]
    assert sorted(changes) == [False, True]


def eager(make: Callable[..., Any], *args: Any) -> Callable[[list[Any]], Any]:
    def apply(pairs: list[Any]) -> Any:
        opt = make()
        return opt.apply_gradients(pairs, *args)

    return apply


APPLIES = {
    "keras": eager(lambda: keras.optimizers.Adam(0.1)),
    "v1": eager(lambda: v1.train.AdamOptimizer(0.1)),
    "clipping": eager(
        lambda: v1.contrib.opt.VariableClippingOptimizer(v1.train.AdamOptimizer(0.1), {}, 1.0)
    ),
    "averages": eager(lambda: v1.contrib.opt.MovingAverageOptimizer(v1.train.AdamOptimizer(0.1))),
}
PAIRS: dict[str, Callable[[Variable], Any]] = {
    "no gradient": lambda w: [(None, w)],
    "a shape": lambda w: [(torch.ones(4), w)],
    "a dtype": lambda w: [(torch.ones(3, dtype=torch.float64), w)],
    "no pairs": lambda w: [w],
    "no variable": lambda w: [(torch.ones(3), 1.0)],
    "rows": lambda w: [(IndexedSlices(torch.ones(1), torch.tensor([9]), torch.Size([3])), w)],
}


@pytest.mark.parametrize("trouble", PAIRS)
@pytest.mark.parametrize("face", ["keras", "v1"])
def test_invalid_pairs_have_a_note(face: str, trouble: str) -> None:
    w = Variable(torch.ones(3), "w")
    assert NOT_TAKEN in notes_of(lambda: APPLIES[face](PAIRS[trouble](w)))
    assert w.numpy().tolist() == [1, 1, 1]


def test_note_reports_ungated_updates() -> None:
    a, b = Variable([1.0], "a"), Variable([1.0], "b")
    opt = v1.train.GradientDescentOptimizer(1.0)
    opt.minimize(lambda: (a * b).sum(), var_list=[a, b], gate_gradients=opt.GATE_NONE)
    count: list[int] = []

    class Failing(v1.train.GradientDescentOptimizer):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            count.append(1)
            return burnt() if len(count) == 2 else super()._resource_apply_dense(grad, handle)

    failing, values = Failing(1.0), [Variable([1.0], "a"), Variable([1.0], "b")]

    def loss() -> Any:
        return (values[0] * values[1]).sum()

    notes = notes_of(
        lambda: failing.minimize(loss, var_list=values, gate_gradients=failing.GATE_NONE)
    )
    name = next(var.name for var in values if var.item() != 1.0)
    assert notes == [f"With GATE_NONE these variables had been updated before: ['{name}']."]


def test_skipped_step_note_does_not_claim_a_step() -> None:
    w = Variable(torch.ones(3, dtype=torch.float16), "w")
    factors = torch.ones(3)
    step = optimize_loss(
        lambda: (w.float() * factors).sum(), "Adam", {}, lambda _: 0.1,
        var_list=[w], dtype="mixed", loss_scaling="Backoff",
    )  # fmt: skip
    step(), step()  # compile what the step needs
    initial, factors[0] = w.numpy().tolist(), torch.inf
    count = ALL_LINES - outcome(ALL_LINES, step)[1]
    notes: set[str] = set()
    for number in range(count // 2, count, 5):
        error, _ = outcome(number, step)
        notes.update(getattr(error, "__notes__", ()))
    assert "The step was skipped." in notes
    assert not any(note.startswith("The step was taken") for note in notes)
    assert w.numpy().tolist() == initial
