# Written by tools/stubs.py from what constructors take.

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.layout_decisions import MatrixLayouts
from thalweg.optim.modern.optimizer import Arguments
from thalweg.optim.modern.schedule_free import Means

class MixedArguments(Arguments):
    def __init__(self, params: Iterable[Mapping[str, object]]) -> None: ...

class Mixed(Means, FusedTorchOptimizer, MixedArguments):
    _named: Mapping[str, Rule]
    layouts: MatrixLayouts | None
    def __init__(
        self,
        params: Iterable[Mapping[str, object]],
        *,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        fused_unscale: bool = False,
        accumulate: int = 1,
        wide_sums: bool = False,
        in_backward: bool = False,
        gradients: str | None = None,
        cautious_decay: bool = False,
        row_floor: bool | float | None = None,
        cautious: bool = False,
        trust_ratio: bool = False,
        sphere: bool = False,
        radial_brake: bool | float | None = None,
        state_storage: str | tuple[tuple[str, str], ...] | Mapping[str, str] | None = None,
        lookahead: int | None = None,
        lookahead_alpha: float = 0.5,
        ema_decay: float | None = None,
        masters: bool = False,
        state_dtype: torch.dtype | None = None,
        weights: str | None = None,
        round: str | None = None,
        seed: int = 0,
        state_device: str | None = None,
        diagnostics: int | Any | None = None,
        spikes: Any | None = None,
    ) -> None:
        """Create an optimizer of class `Mixed`.

        Args:
            params: Groups, as torch's optimizers take them. Each group has a `rule`: a class of
                `thalweg.optim`, its name, or a `thalweg.Rule` of your own. Missing options get the
                rule's defaults. `thalweg.optim.groups(model, rules=...)` returns such groups.
                Groups and states store the name of your own rule, which computes with torch's
                numbers.
            clip_grad_norm: Maximum of the global norm; larger gradients are scaled down together.
            clip_grad_value: Elements of gradients are clipped to [-value, value].
            fused_unscale: True if the step unscales gradients instead of `torch.amp.GradScaler`.
                The steps of parameters on a GPU are then counted on the GPU.
            accumulate: Number of calls of `step` per update. Each call adds the gradients to sums
                and frees them; the last call updates. Clipping and the update use the sums.
            wide_sums: Whether sums of 16-bit gradients are float32; always so with master weights.
            in_backward: True applies and frees each gradient as it arrives; `step` then only
                counts. Not with options that need all gradients: `clip_grad_norm`, `accumulate`,
                `fused_unscale`.
            gradients: "flat" makes all gradients views of a few buffers with fixed addresses, which
                `zero_grad` fills with 0. A parameter without a gradient then has a gradient of 0; a
                frozen parameter has None.
            cautious_decay: True if decoupled decay, as in AdamW, skips elements that the step moves
                away from 0. Rules without decoupled decay raise RuleError.
                https://arxiv.org/abs/2510.12402
            row_floor: Minimum norm of a row's step, divided by the row's norm times the learning
                rate. True is 0.3825. Parameters that are not matrices raise InvalidArgumentError.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: True skips elements whose step and gradient differ in sign. The remaining
                steps are divided by the fraction of remaining elements, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: True multiplies a step by the parameter's norm over the norm of the step
                without learning rate, unless a norm is 0. Adam becomes LAMB, and SGD becomes LARS.
                https://arxiv.org/abs/1904.00962
            sphere: True gives a step the norm of its parameter times the learning rate, and
                restores the parameter's initial norm, `radius` in the state. Decoupled decay has no
                effect. A parameter that is 0 at first has ordinary steps, with a warning.
                https://arxiv.org/abs/2606.16899
            radial_brake: Factor of the growth of a parameter's norm in a step, relative to the norm
                after decoupled decay. True is 0.5, and 0 keeps the norm. Steps that shrink the norm
                are unchanged. https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: Codecs for slots of parameters with at least 4,096 elements. "8bit" for
                the default of each slot. A codec's name for all slots, or its counterpart for
                nonnegative slots. Or {slot name: codec or "float32"}. None stores floats.
            lookahead: Number of steps between updates of the slow weights, `slow` in the state. An
                update moves them toward the parameter and sets the parameter to them. They are
                float32 for 16-bit parameters.
            lookahead_alpha: Interpolation factor in (0, 1].
            ema_decay: Decay of the average, in [0, 1). The average is `ema` in the state, and
                float32 for parameters of 16 bits. None keeps no average.
            masters: True if steps update a float32 copy of each 16-bit parameter, `master` in its
                state, and round it to the parameter. A user's write to a parameter, also by
                `.data`, updates the master, unless the master already rounds to the written value.
            state_dtype: Dtype of the slots: torch.float32, float64, float16 or bfloat16. None is
                the dtype of the parameter, or of its master.
            weights: "split" makes each bfloat16 parameter the upper 16 bits of a 24-bit weight,
                which steps update. The lower 8 bits are in the state as `correction`, a byte per
                element. A user's write to a parameter keeps the correction, at most half a last
                place. Slots are float32 by default. Reductions, such as LAMB's norms, use the
                parameters. Sparse gradients are made dense. Works on CPU and GPU.
            round: "stochastic" rounds float16 and bfloat16 elements of parameters and state up with
                a probability equal to their distance from the lower neighbour, so that small steps
                add up. NaN, infinities and exact values stay. Random bits depend only on `seed`,
                the index of the parameter, the number of its step, and the index of the element in
                the full parameter. None rounds to nearest. Works on CPU and GPU; not with sparse
                gradients or `state_device`, nor on a GPU with DTensors sharded along another
                dimension than the first.
            seed: An integer from 0 to 2**48 - 1, saved in state dicts. All ranks of a training need
                the same seed.
            state_device: "cpu" keeps and updates the state on the CPU. Gradients are copied to the
                CPU and new values back; with `in_backward`, during the backward pass. In-place
                writes by `.data` are then not detected. None keeps state on the device of its
                parameter.
            diagnostics: Number of steps between updates of the table `optimizer.diagnostics`, with
                the sizes of each parameter's gradient, update and weight. Or a
                `thalweg.optim.diagnostics.Diagnostics`, which also has an output. Not with
                `in_backward` or DTensors.
            spikes: A `thalweg.optim.diagnostics.Spikes` with an action, such as `Spikes("skip")`,
                which skips the step. The host waits for the gradient norm of each step. Not with
                `in_backward`.
        """
    def add_param_group(self, param_group: dict[str, Any]) -> None: ...
