"""User actions between two steps, drawn by dice that the twin throws, too.

A change that the next step may refuse leaves in `undo` what takes it back.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attack.trainings import Training, numbers, rows
from thalweg import IndexedSlices, Variable

Move = Callable[[Training, random.Random], None]


class Spoilt(Exception):
    """A storage was cut, and cannot be made whole: the training is over."""


def clamped(value: Tensor) -> Tensor:
    return value.clamp(-0.75, 0.75)


def _place(training: Training, dice: random.Random) -> int:
    return dice.randrange(len(training.variables))


def _with_data(var: Any, data: Tensor) -> Callable[[], None]:
    return lambda: setattr(var, "data", data)


def _remembered(training: Training, place: int) -> Any:
    """Return a variable whose values come back if the next step is refused."""
    var = training.variables[place]
    training.undo.append(_with_data(var, var.detach().clone()))
    return var


def _is_dense(grad: Any) -> bool:
    return isinstance(grad, Tensor) and grad.layout == torch.strided and not grad.is_meta


# Layouts of some values


def _transposed(value: Tensor) -> Tensor:
    return value.t().contiguous().t() if value.dim() == 2 else value.clone()


def _every_second(value: Tensor) -> Tensor:
    return torch.stack([value, value], -1)[..., 0]


def _behind(value: Tensor) -> Tensor:
    return torch.cat([value.new_zeros(3), value.flatten()])[3:].view(value.shape)


def _at_an_odd_byte(value: Tensor) -> Tensor:
    size = value.element_size()
    memory = bytearray(size * (value.numel() + 2))
    raw = torch.frombuffer(memory, dtype=value.dtype, offset=1, count=value.numel() + 1)
    return raw[: value.numel()].view(value.shape).copy_(value)


def _backwards(value: Tensor) -> Tensor:
    order = list(reversed(range(value.dim())))
    return value.permute(order).contiguous().permute(order)


LAYOUTS = [Tensor.clone, _transposed, _every_second, _behind, _at_an_odd_byte, _backwards]


def _laid_out(value: Tensor, dice: random.Random) -> Tensor:
    return dice.choice(LAYOUTS)(value.detach())


# Variables


def data_replaced(training: Training, dice: random.Random) -> None:
    var = _remembered(training, _place(training, dice))
    var.data = _laid_out(var.detach() * 0.5, dice)


def data_expanded(training: Training, dice: random.Random) -> None:
    var = _remembered(training, _place(training, dice))
    if var.numel():
        var.data = var.detach().flatten()[0].clone().expand(var.shape)


def data_of_another_shape(training: Training, dice: random.Random) -> None:
    var = _remembered(training, _place(training, dice))
    var.data = var.detach().flatten() if dice.random() < 0.5 else var.detach()[None]


def data_seen_otherwise(training: Training, dice: random.Random) -> None:
    """Set other strides for the variable's memory, or another type of the same size."""
    var = _remembered(training, _place(training, dice))
    if var.dtype in (torch.float16, torch.bfloat16) and dice.random() < 0.7:
        var.data = var.detach().view(
            torch.float16 if var.dtype == torch.bfloat16 else torch.bfloat16
        )
    elif var.dim() == 2 and var.shape[0] == var.shape[1]:
        var.data = var.detach().t()


def variable_set(training: Training, dice: random.Random) -> None:
    var = _remembered(training, _place(training, dice))
    with torch.no_grad():
        var.set_(_laid_out(var.detach() + 0.25, dice))


def variable_transposed(training: Training, dice: random.Random) -> None:
    var = _remembered(training, _place(training, dice))
    if var.dim() == 2:
        with torch.no_grad():
            var.t_()


def variable_swapped(training: Training, dice: random.Random) -> None:
    if training.face == "session":  # a session knows its tensors by themselves
        return
    var = _remembered(training, _place(training, dice))
    value = numbers(var.shape, var.dtype, dice)
    variable: Any = Variable(value, var.name) if isinstance(var, Variable) else None
    torch.utils.swap_tensors(var, torch.nn.Parameter(value) if variable is None else variable)


def variable_written(training: Training, dice: random.Random) -> None:
    with torch.no_grad():
        training.variables[_place(training, dice)].mul_(-0.5)


def variables_share(training: Training, dice: random.Random) -> None:
    place, source_place = _place(training, dice), _place(training, dice)
    first, second = training.variables[place], _remembered(training, source_place)
    if place != source_place and first.dtype == second.dtype and first.shape == second.shape:
        second.data = first.data


def constraint_given(training: Training, dice: random.Random) -> None:
    var = training.variables[_place(training, dice)]
    constraint = clamped if dice.random() < 0.6 else None
    if dice.random() < 0.5:
        var.constraint = constraint
    else:
        name = "_constraint" if isinstance(var, Variable) else "constraint"
        var.__dict__ = {**var.__dict__, name: constraint}


# Storages that are cut


def _cut(training: Training, tensor: Tensor, dice: random.Random) -> None:
    """Cut the storage of a tensor, of the training alone: memory that NumPy has seen, as all of
    the twin's has been, cannot be cut."""
    storage, part = tensor.untyped_storage(), dice.choice([0.0, 0.25, 0.5, 0.9, 1.0])
    if training.is_twin or training.adds_up or not storage.resizable():
        return
    bytes_copy = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
    cut_begin = min(int(part * len(bytes_copy)), max(len(bytes_copy) - 1, 0))

    def restore() -> None:
        if not storage.resizable():
            raise Spoilt
        storage.resize_(len(bytes_copy))
        torch.empty(0, dtype=torch.uint8).set_(storage)[cut_begin:] = bytes_copy[cut_begin:]

    storage.resize_(cut_begin)
    training.undo.append(restore)
    training.is_cut = True


def variable_cut(training: Training, dice: random.Random) -> None:
    _cut(training, training.variables[_place(training, dice)], dice)


def slot_cut(training: Training, dice: random.Random) -> None:
    slot = _slot(training, dice)
    if slot is not None:
        _cut(training, slot, dice)


def gradient_cut(training: Training, dice: random.Random) -> None:
    grad = training.gradients[_place(training, dice)]
    part = dice.choice([grad.values, grad.indices]) if isinstance(grad, IndexedSlices) else grad
    if _is_dense(part):
        _cut(training, part, dice)


# Slots


def _slot(training: Training, dice: random.Random) -> Any:
    names = training.slot_names()
    place = _place(training, dice)
    if not names:
        return None
    if training.held and dice.random() < 0.5:
        return dice.choice(training.held)
    return training.slot(place, dice.choice(names))


def _remembered_slot(training: Training, dice: random.Random) -> Any:
    slot = _slot(training, dice)
    if slot is None:
        return numbers((4, 4), torch.float32, dice)
    training.undo.append(_with_data(slot, slot.detach().clone()))
    return slot


def slot_held(training: Training, dice: random.Random) -> None:
    slot = _slot(training, dice)
    if slot is not None:
        training.held.append(slot)


def slot_set(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    with torch.no_grad():
        slot.set_(_laid_out(slot.detach() * 0.5, dice))


def slot_transposed(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    if slot.dim() == 2:
        with torch.no_grad():
            slot.t_()


def slot_swapped(training: Training, dice: random.Random) -> None:
    if training.face == "session":
        return
    slot = _remembered_slot(training, dice)
    new_slot = torch.nn.Parameter(slot.detach() * 0.5, requires_grad=False)
    torch.utils.swap_tensors(slot, new_slot)


def slot_data_given(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    slot.data = _laid_out(slot.detach() * 0.5, dice)


def slot_expanded(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    if slot.numel():
        slot.data = slot.detach().flatten()[0].clone().expand(slot.shape)


def slot_of_another_shape(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    slot.data = slot.detach().flatten()[: max(0, slot.numel() - 1)]


def slot_on_its_variable(training: Training, dice: random.Random) -> None:
    slot = _remembered_slot(training, dice)
    var = training.variables[_place(training, dice)]
    if slot.shape == var.shape and slot.dtype == var.dtype:
        slot.data = var.data


def slot_written(training: Training, dice: random.Random) -> None:
    slot = _slot(training, dice)
    if slot is not None:
        with torch.no_grad():
            slot.mul_(0.5)


# Gradients


def gradients_new(training: Training, dice: random.Random) -> None:
    training.renew(dice)


def gradient_laid_out(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    training.gradients[place] = _laid_out(numbers(var.shape, var.dtype, dice), dice)


def gradient_expanded(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    training.gradients[place] = numbers((), var.dtype, dice).expand(var.shape)


def gradient_negated(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    grad = training.gradients[place]
    if _is_dense(grad):
        training.gradients[place] = torch._neg_view(grad)


def gradient_written(training: Training, dice: random.Random) -> None:
    grad = training.gradients[_place(training, dice)]
    if _is_dense(grad) and grad._base is None:
        grad.mul_(-0.5)


def gradient_none(training: Training, dice: random.Random) -> None:
    training.gradients[_place(training, dice)] = None


def gradient_sparse(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    if var.dim():
        row_grad = rows(var, dice)
        sparse = torch.sparse_coo_tensor(row_grad.indices[None], row_grad.values, tuple(var.shape))
        training.gradients[place] = row_grad if dice.random() < 0.6 else sparse


def gradient_of_a_bad_row(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    if var.dim():
        row_grad = rows(var, dice)
        bad = torch.full_like(row_grad.indices, dice.choice([-1, var.shape[0], 2**31, -(2**63)]))
        training.gradients[place] = type(row_grad)(row_grad.values, bad, tuple(var.shape))


def gradient_of_another_dtype(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    kind = dice.choice([torch.float64, torch.float32, torch.float16, torch.int32, torch.complex64])
    training.gradients[place] = numbers(var.shape, torch.float32, dice).to(kind)


def gradient_of_another_shape(training: Training, dice: random.Random) -> None:
    place = _place(training, dice)
    var = training.variables[place]
    shape = dice.choice([(var.numel() + 1,), (1, *var.shape), (var.numel(),), ()])
    training.gradients[place] = numbers(shape, var.dtype, dice)


def gradient_is_a_variable(training: Training, dice: random.Random) -> None:
    place, source_place = _place(training, dice), _place(training, dice)
    var, source = training.variables[place], training.variables[source_place]
    if var.shape == source.shape and var.dtype == source.dtype:
        training.gradients[place] = source.detach()


def gradient_is_a_slot(training: Training, dice: random.Random) -> None:
    place, slot = _place(training, dice), _slot(training, dice)
    var = training.variables[place]
    if slot is not None and slot.shape == var.shape and slot.dtype == var.dtype:
        training.gradients[place] = slot.detach()


def gradient_of_junk(training: Training, dice: random.Random) -> None:
    junk: list[Any] = ["g", object(), float("nan"), 1.0, [[1.0]], torch.zeros(3, device="meta")]
    training.gradients[_place(training, dice)] = dice.choice(junk)


# The step as a whole


def group_changed(training: Training, dice: random.Random) -> None:
    indices = list(range(len(training.variables)))
    kind = dice.choice(["all", "some", "mixed", "twice"])
    if kind == "some":
        indices = dice.sample(indices, dice.randint(1, len(indices)))
    elif kind == "mixed":
        dice.shuffle(indices)
    elif kind == "twice":
        indices.append(dice.choice(indices))
    if training.face != "optimize_loss":
        training.group = indices


def variable_added(training: Training, dice: random.Random) -> None:
    if training.face == "optimize_loss" or len(training.variables) > 6:
        return
    training.add(numbers((4, 4), torch.float32, dice))
    training.gradients.append(numbers((4, 4), torch.float32, dice))
    training.group.append(len(training.variables) - 1)


def param_groups_reordered(training: Training, dice: random.Random) -> None:
    """Change the places of parameters, on which random bits depend."""
    if training.face == "optim":
        groups = training.opt.param_groups
        dice.choice([groups, *(group["params"] for group in groups)]).reverse()


def hyperparameter_changed(training: Training, dice: random.Random) -> None:
    training.set_rate(dice.choice([0.1, 0.05, 0.5, 0.0]))


def skipping_switched(training: Training, dice: random.Random) -> None:
    training.is_skipping = dice.random() < 0.6


def hyperparameter_of_no_use(training: Training, dice: random.Random) -> None:
    if training.face == "keras":
        rate = training.opt.learning_rate
        training.opt.learning_rate = _failing
        training.undo.append(lambda: setattr(training.opt, "learning_rate", float(rate)))


def _failing() -> float:
    raise ZeroDivisionError("a rate that cannot be told")


def engine_switched(training: Training, dice: random.Random) -> None:
    training.choose(dice.choice([None, "cpu", "auto", "reference"]))


def denormals_switched(training: Training, dice: random.Random) -> None:
    training.denormals = dice.choice([None, "keep", "flush"])


def state_loaded(training: Training, dice: random.Random) -> None:
    state = training.save()
    if dice.random() < 0.5:
        training.step()
    training.load(state)


def state_refused(training: Training, dice: random.Random) -> None:
    if training.face == "session":
        return
    state = training.save()
    state[dice.choice(["junk", "iterations", "w0"])] = "junk"
    with contextlib.suppress(ValueError, TypeError):
        training.load(state)


def copied(training: Training, dice: random.Random) -> None:
    mode = dice.choice(["deepcopy", "pickle"])
    if training.face in ("keras", "v1", "optim"):
        training.copied(mode)


def state_looked_at(training: Training, dice: random.Random) -> None:
    training.save()
    repr(training.opt)


def step_of_another_thread(training: Training, dice: random.Random) -> None:
    def work() -> None:
        with contextlib.suppress(Exception):  # the next step will say so, too
            training.step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


CUTS: tuple[Move, ...] = (variable_cut, slot_cut, gradient_cut)
MOVES: tuple[Move, ...] = (
    *CUTS,
    data_replaced, data_expanded, data_of_another_shape, data_seen_otherwise, variable_set,
    variable_transposed, variable_swapped, variable_written, variables_share, constraint_given,
    slot_held, slot_set, slot_transposed, slot_swapped, slot_data_given, slot_expanded,
    slot_of_another_shape, slot_on_its_variable, slot_written,
    gradients_new, gradient_laid_out, gradient_expanded, gradient_negated, gradient_written,
    gradient_none, gradient_sparse, gradient_of_a_bad_row, gradient_of_another_dtype,
    gradient_of_another_shape, gradient_is_a_variable, gradient_is_a_slot, gradient_of_junk,
    group_changed, variable_added, param_groups_reordered, hyperparameter_changed,
    skipping_switched,
    hyperparameter_of_no_use,
    engine_switched, denormals_switched, state_loaded, state_refused, copied, state_looked_at,
    step_of_another_thread,
)  # fmt: skip
