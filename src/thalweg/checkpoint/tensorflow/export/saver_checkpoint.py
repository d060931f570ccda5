"""Layout of `tf.train.Saver`: tensors by name."""

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


def as_saver(contents: ExportContents) -> tuple[dict[str, StoredTensor], None]:
    """Return the tensors by their names, and None instead of a graph.

    Raises:
        CheckpointMismatchError: A slot or scalar has the name of a variable. Nothing was written.
    """
    tensors = dict(contents.variables)
    clashes: list[str] = []
    for index, (name, by_kind) in enumerate(contents.slots.items()):
        for kind, title in zip(by_kind, _slot_titles(contents, by_kind), strict=True):
            full = f"{name}/{title}"
            if isinstance(contents.optimizer, NovoGrad) and kind == _AVERAGE:
                full = f"nvgrad2_ema{index}"
            clashes += [f"{full!r} is a variable and a slot of {name!r}"] * (full in tensors)
            tensors[full] = by_kind[kind]
    scalars = {**contents.scalars}
    scalars |= {f"{name}/{AVERAGE}": average for name, average in contents.averages.items()}
    if contents.global_step is not None:
        scalars[GLOBAL_STEP] = contents.global_step
    clashes += [
        f"{name!r} is a variable and the optimizer's" for name in scalars if name in tensors
    ]
    if clashes:
        raise state.mismatch(clashes, outcome="Nothing was written.")
    return {**tensors, **scalars}, None


def _slot_titles(contents: ExportContents, kinds: Iterable[str]) -> list[str]:
    """Return the last parts of the slot names of one variable, such as "Adam", "Adam_1"."""
    optimizer: Any = contents.optimizer
    parts = {kind: optimizer.get_name() for kind in kinds}
    if isinstance(optimizer, RuleOptimizer):
        fills: Any = contents.optimizer._slot_fills()
        parts |= {kind: part for kind, _, part in fills}
    used: Counter[str] = Counter()
    titles: list[str] = []
    for part in (parts[kind] for kind in kinds):
        titles.append(f"{part}_{used[part]}" if used[part] else part)
        used[part] += 1
    return titles
