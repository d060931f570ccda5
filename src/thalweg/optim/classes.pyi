# Written by tools/stubs.py from what constructors take.

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer

class Adam(FusedTorchOptimizer, torch.optim.Adam):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
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
        """Create an optimizer of class `Adam`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            amsgrad: True to divide steps by the root of the largest running mean of squares so far.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            fused: As in torch; with True, the step unscales gradients for `torch.amp.GradScaler`.
            decoupled_weight_decay: True for the decay of AdamW; False to add the decay to the
                gradient.
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

class AdamW(FusedTorchOptimizer, torch.optim.AdamW):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
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
        """Create an optimizer of class `AdamW`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: The fraction of each parameter that a step subtracts, times the rate.
            amsgrad: True to divide steps by the root of the largest running mean of squares so far.
            maximize: True to maximize the objective.
            foreach: As in torch; without effect if a step is one pass over memory.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            fused: As in torch; with True, the step unscales gradients for `torch.amp.GradScaler`.
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

class SGD(FusedTorchOptimizer, torch.optim.SGD):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
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
        """Create an optimizer of class `SGD`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            momentum: Decay factor of the running mean or sum of gradients.
            dampening: The fraction of a gradient that is not added to the momentum.
            weight_decay: Strength of the weight decay; 0 for none.
            nesterov: True for Nesterov momentum.
            maximize: True to maximize the objective.
            foreach: As in torch; without effect if a step is one pass over memory.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            fused: As in torch; with True, the step unscales gradients for `torch.amp.GradScaler`.
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

class RMSprop(FusedTorchOptimizer, torch.optim.RMSprop):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-08,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
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
        """Create an optimizer of class `RMSprop`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            alpha: Share of the running mean of squares that a step keeps.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            momentum: Decay factor of the running mean or sum of gradients.
            centered: True to divide by the root of the variance.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
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

class Adagrad(FusedTorchOptimizer, torch.optim.Adagrad):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
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
        """Create an optimizer of class `Adagrad`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            lr_decay: After n steps the rate is divided by 1 + n * lr_decay.
            weight_decay: Strength of the weight decay; 0 for none.
            initial_accumulator_value: Initial value of the sum of squares.
            eps: A small number that keeps a divisor from 0.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            fused: As in torch; with True, the step unscales gradients for `torch.amp.GradScaler`.
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

class Adadelta(FusedTorchOptimizer, torch.optim.Adadelta):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-06,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
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
        """Create an optimizer of class `Adadelta`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            rho: Decay factor of the running mean of squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            foreach: As in torch; without effect if a step is one pass over memory.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
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

class Adamax(FusedTorchOptimizer, torch.optim.Adamax):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
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
        """Create an optimizer of class `Adamax`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            capturable: True to support steps on a GPU that a CUDA graph captures.
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

class NAdam(FusedTorchOptimizer, torch.optim.NAdam):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.002,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        momentum_decay: float = 0.004,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
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
        """Create an optimizer of class `NAdam`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            momentum_decay: How fast the schedule of the momentum rises; `decay` in Keras.
            decoupled_weight_decay: True for the decay of AdamW; False to add the decay to the
                gradient.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
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

class RAdam(FusedTorchOptimizer, torch.optim.RAdam):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
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
        """Create an optimizer of class `RAdam`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: Strength of the weight decay; 0 for none.
            decoupled_weight_decay: True for the decay of AdamW; False to add the decay to the
                gradient.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
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

class SparseAdam(FusedTorchOptimizer, torch.optim.SparseAdam):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        maximize: bool = False,
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
        """Create an optimizer of class `SparseAdam`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            betas: Decay factors of the running means of gradients and of their squares.
            eps: A small number that keeps a divisor from 0.
            maximize: True to maximize the objective.
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

class ASGD(FusedTorchOptimizer, torch.optim.ASGD):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        lambd: float = 0.0001,
        alpha: float = 0.75,
        t0: float = 1000000.0,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
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
        """Create an optimizer of class `ASGD`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            lambd: How much of each parameter decays, and how fast the rate falls.
            alpha: The power by which the rate falls.
            t0: The step after which parameters are averaged.
            weight_decay: Strength of the weight decay; 0 for none.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
            capturable: True to support steps on a GPU that a CUDA graph captures.
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

class Rprop(FusedTorchOptimizer, torch.optim.Rprop):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-06, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
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
        """Create an optimizer of class `Rprop`.

        Args:
            params: Parameters, (name, parameter) pairs, or groups, which may have their own
                arguments.
            lr: The learning rate, a number or a tensor of shape ().
            etas: The factors of a step's size after a change of the gradient's sign, and without
                one.
            step_sizes: The smallest and the largest size of a step.
            capturable: True to support steps on a GPU that a CUDA graph captures.
            foreach: As in torch; without effect if a step is one pass over memory.
            maximize: True to maximize the objective.
            differentiable: True to let gradients flow through the step; torch's code takes it then.
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
