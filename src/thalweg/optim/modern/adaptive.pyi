# Written by tools/stubs.py from what constructors take.

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from thalweg.optim.modern.optimizer import ModernOptimizer

class LaProp(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.0004,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
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
    ) -> None:
        """Make one; see `LaProp`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What the running means of gradients and of their squares keep in a step.
            eps: A small number that keeps a divisor from 0.
            weight_decay: How much of each parameter decays; 0 is none.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class AdEMAMix(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor, float | Tensor] = (0.9, 0.999, 0.9999),
        weight_decay: float = 0.0,
        alpha: float = 5.0,
        eps: float = 1e-08,
        alpha_warmup: float = 0,
        beta3_warmup: float = 0,
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
    ) -> None:
        """Make one; see `AdEMAMix`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What the two means of gradients, fast and slow, and that of squares keep in a
                step: the fast one, the squares, the slow one.
            weight_decay: How much of each parameter decays; 0 is none.
            alpha: The weight of the slow mean.
            eps: A small number that keeps a divisor from 0.
            alpha_warmup: In how many steps `alpha` rises from 0; 0 is none.
            beta3_warmup: In how many steps `betas[2]` rises from `betas[0]`; 0 is none.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class ADOPT(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.9999),
        eps: float = 1e-06,
        clip_exp: float = 0.25,
        weight_decay: float = 0.0,
        decoupled: bool = False,
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
    ) -> None:
        """Make one; see `ADOPT`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What the running means of gradients and of their squares keep in a step.
            eps: A small number that keeps a divisor from 0.
            clip_exp: The power of the number of steps before to which what is divided is clipped.
            weight_decay: How much of each parameter decays; 0 is none.
            decoupled: Whether decay is AdamW's, beside the step.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class Adan(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor, float | Tensor] = (0.98, 0.92, 0.99),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        no_prox: bool = False,
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
    ) -> None:
        """Make one; see `Adan`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What is kept of the means of gradients, of their differences and of squares.
            eps: A small number that keeps a divisor from 0.
            weight_decay: How much of each parameter decays; 0 is none.
            no_prox: Whether decay is AdamW's.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class LAMB(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-06,
        weight_decay: float = 0.01,
        trust_clip: bool = False,
        always_adapt: bool = False,
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
    ) -> None:
        """Make one; see `LAMB`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What the running means of gradients and of their squares keep in a step.
            eps: A small number that keeps a divisor from 0.
            weight_decay: How much of each parameter decays; 0 is none.
            trust_clip: Whether no step is longer than Adam's.
            always_adapt: Whether parameters without decay take such steps, too.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class AdamH(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-08,
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
    ) -> None:
        """Make one; see `AdamH`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            betas: What the running means of gradients and of their squares keep in a step.
            eps: A small number that keeps a divisor from 0.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """

class SM3(ModernOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        momentum: float = 0.0,
        beta: float = 0.0,
        eps: float = 1e-30,
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
    ) -> None:
        """Make one; see `SM3`.

        Args:
            params: Parameters, pairs of a name and a parameter, or groups, which may have arguments
                of their own.
            lr: The learning rate, a number or a tensor of shape ().
            momentum: What the running mean of gradients keeps in a step.
            beta: What sums keep in a step, which are running means then; 0 keeps all of them.
            eps: A small number that keeps a divisor from 0.
            clip_grad_norm: All gradients are scaled so that their common norm is no higher.
            clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows
                of sparse gradients are added up before.
            fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
                parameters on a GPU are counted there then.
            accumulate: How many calls of `step` add up gradients, and free them, for one that is
                taken: the last of them. Clipping sees the sum, and so does the update.
            wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
            in_backward: Whether each gradient is applied and freed as it arrives; `step` counts
                then. Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a
                scaler.
            gradients: "flat" gives all parameters gradients in a few buffers, which stay where they
                are and which `zero_grad` clears at once. A parameter that had no gradient has one
                of 0, a frozen one none.
            cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step
                moves away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
            row_floor: Each row's step is made at least that long, as a share of the row, times the
                rate; True is 0.3825. Parameters that have not two dimensions are refused.
                https://github.com/KellerJordan/modded-nanogpt/pull/328
            cautious: An element whose step has the sign of its gradient would go uphill, and stays.
                The steps of the others are divided by their share of the parameter, at least 0.001.
                https://arxiv.org/abs/2411.16085
            trust_ratio: The step of each parameter is multiplied by the parameter's norm over that
                of the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with
                SGD. https://arxiv.org/abs/1904.00962
            sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
                that the parameter had before its first step, which is `radius` in its state. Decay
                beside the step has no effect. A parameter that begins at 0 takes the rule's own
                steps, of which a warning tells. https://arxiv.org/abs/2606.16899
            radial_brake: Where a step makes the norm of its parameter larger than it was after the
                decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
                none. Other steps are as they are.
                https://github.com/KellerJordan/modded-nanogpt/pull/294
            state_storage: In what slots of parameters of 4,096 elements and more are kept, as
                bytes: "8bit" for the codec that suits each, the name of a codec for all, with its
                counterpart for those that are never negative, or a dict of slots' names with a
                codec, or "float32", for each. None keeps numbers.
            lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every
                step whose number is a multiple of this one they go `lookahead_alpha` of the way to
                the parameter, which becomes what they are. They are float32 for parameters of 16
                bits.
            lookahead_alpha: The share of the way.
            ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by 1 -
                ema_decay of the way in each step. It is float32 for parameters of 16 bits.
            masters: Whether parameters of 16 bits have a master in float32 in their state, as
                `master`, which steps update, and which they follow. What others write to a
                parameter counts, by `.data`, too; a write that rounds to the same value cannot be
                seen.
            state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for
                the parameter's, or that of its master.
            weights: "split" has parameters, all of bfloat16, be the upper part of weights, of which
                the lower 8 bits are in their state, as `correction`, a byte an element; steps move
                the weights. What you write to a parameter is the weight, but for its correction of
                at most half a last place. Slots are float32, if nothing says otherwise. Measures,
                such as LAMB's norms, see parameters. Sparse gradients are made dense. On the CPU
                and on GPUs.
            round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
                become the upper one of its two neighbours as often as it is near it, so that small
                steps add up. NaN, infinities and what the type holds stay. Random bits depend on
                `seed`, on the parameter's place among all, on the number of its step, and on the
                place of the element in the whole parameter: on nothing else. None rounds to the
                nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or
                DTensors that are cut along another dimension than the first.
            seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have
                the same.
            state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it
                there: gradients go there, values come back. None keeps it with the parameters. Not
                with `in_backward`. What others write in place by `.data` is not seen then.
            diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large
                each parameter's gradient, update and weight are, and more: an integer, or a
                `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
                with `in_backward`, and not for DTensors.
        """
