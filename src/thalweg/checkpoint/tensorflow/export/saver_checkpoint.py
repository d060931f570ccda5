"""A checkpoint as `tf.train.Saver` writes it: tensors by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from thalweg._core import state
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import GLOBAL_STEP
from thalweg.checkpoint.tensorflow.detection.saver_names import AVERAGE
from thalweg.checkpoint.tensorflow.export.export_contents import ExportContents
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1.train.rule_optimizer import RuleOptimizer

_AVERAGE = "grads_ema"


def as_saver(found: ExportContents) -> tuple[dict[str, StoredTensor], None]:
    """Return the tensors by their names.

    Raises:
        CheckpointMismatchError: A slot would have the name of a variable. Nothing was written.
    """
    tensors = dict(found.variables)
    twice: list[str] = []
    for index, (name, own) in enumerate(found.slots.items()):
        for kind, title in zip(own, _slot_titles(found, own), strict=True):
            full = f"{name}/{title}"
            if isinstance(found.optimizer, NovoGrad) and kind == _AVERAGE:
                full = f"nvgrad2_ema{index}"
            twice += [f"{full!r} is a variable and a slot of {name!r}"] * (full in tensors)
            tensors[full] = own[kind]
    others = {**found.scalars}
    others |= {f"{name}/{AVERAGE}": each for name, each in found.averages.items()}
    if found.global_step is not None:
        others[GLOBAL_STEP] = found.global_step
    twice += [f"{name!r} is a variable and the optimizer's" for name in others if name in tensors]
    if twice:
        raise state.mismatch(twice, outcome="Nothing was written.")
    return {**tensors, **others}, None


def _slot_titles(found: ExportContents, kinds: Iterable[str]) -> list[str]:
    """The last parts of the names of a variable's slots."""
    optimizer: Any = found.optimizer
    parts = {kind: optimizer.get_name() for kind in kinds}
    if isinstance(optimizer, RuleOptimizer):
        fills: Any = found.optimizer._slot_fills()
        parts |= {kind: part for kind, _, part in fills}
    used: Counter[str] = Counter()
    titles: list[str] = []
    for part in (parts[kind] for kind in kinds):
        titles.append(f"{part}_{used[part]}" if used[part] else part)
        used[part] += 1
    return titles
