"""Rules for matrices: Muon, NorMuon, AdaMuon, MuonH, SOAP and KLSOAP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Signature
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from thalweg._base.locks import importing
from thalweg._base.matrix_layout import MatrixLayout
from thalweg._core.param_groups import Group, Params
from thalweg._core.state import shown
from thalweg.formula import Rule
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate, layout_of
from thalweg.rules.modern.adamuon import adamuon
from thalweg.rules.modern.muon import muon
from thalweg.rules.modern.muonh import muonh
from thalweg.rules.modern.normuon import normuon
from thalweg.rules.modern.soap import soap

if TYPE_CHECKING:
    from thalweg.optim.mixed import Mixed

Coefficients = str | tuple[float, float, float] | tuple[tuple[float, float, float], ...]
_FLOAT32_MAX = 3.4028234663852886e38  # of float32
ORIGINAL = (3.4445, -4.7750, 2.0315)
Heads = int | tuple[int, ...] | None
Layout = MatrixLayout | str | None
_LAYOUTS = ("heads", "layout")

# The options of a group that choose a rule, with the names of the rules' functions; beside the
# layout.
_MUONS = {"nesterov": "nesterov", "ns_coefficients": "coefficients", "ns_steps": "steps",
          "eps": "epsilon", "adjust_lr_fn": "adjust", "update_scale": "length",
          "ns_dtype": "dtype"}  # fmt: skip
_ADAMUONS = {name: option for name, option in _MUONS.items() if name != "eps"}
_SOAPS = {"precondition_frequency": "frequency", "max_precondition_dim": "largest"}


class OfMatrices:
    """Base class of rules for matrices; a parameter (d0, d1, ...) is a matrix (d0, d1 * ...).

    `layout` or `heads` of a group describes several matrices in a parameter. Parameters of three
    dimensions need either option.
    """

    _of_matrices = True
    _counts = False
    # Options that the state of torch's own class lacks.
    _added_options = ("heads", "layout", "ns_dtype")
    _choices: ClassVar[dict[str, str]] = _MUONS
    _unread = (*_MUONS, *_LAYOUTS)
    _make_rule: Callable[..., Rule]
    constructor_signature: ClassVar[Signature]

    @classmethod
    def for_model(
        cls,
        module: nn.Module,
        *,
        adamw: Mapping[str, Any] | None = None,
        layouts: Mapping[str, Any] | None = None,
        output: Iterable[str] | str | None = None,
        inputs: Any = None,
        **options: Any,
    ) -> Mixed:
        """Return `Mixed` with this rule for the matrices of a model and AdamW for the rest.

        Printing the result shows rule, layout and parameters of each group, with reasons. Vectors
        have no weight decay.

        Args:
            module: The model.
            adamw: Options of AdamW, such as `{"lr": 3e-4}`.
            layouts, output, inputs: Arguments of `matrix_layouts`, which selects the matrices.
            options: Options of this class, such as `lr`; and options of the step, such as
                `clip_grad_norm`, which also apply to AdamW.

        Raises:
            InvalidArgumentError: The matrices of a parameter are undecided. The message shows a
                `layouts` argument that decides.
            TypeError, ValueError: An option is invalid.
        """
        with importing:
            from thalweg.optim.for_model import mixed_for_model
        return mixed_for_model(cls.__name__, module, adamw, layouts, output, inputs, options)

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        """Return the rule for the options of a group.

        Raise ValueError if an option is invalid.
        """
        names = [name for name in cls._choices if name in cls.constructor_signature.parameters]
        rule_options = {cls._choices[name]: _read(name, group[name]) for name in names}
        try:
            return cls._make_rule(**rule_options, layout=layout_of(group))
        # A dict or other unhashable option is no key of the cache of rules.
        except TypeError as error:
            options = ", ".join(f"{name}={shown(group[name])}" for name in names)
            raise ValueError(f"No rule has {options}.") from error

    @classmethod
    def _check_choices(cls, group: Mapping[str, Any]) -> None:
        cls._choose_rule({**group})


def _read(name: str, option: Any) -> Any:
    """Return an option of a rule, converted to Python numbers and tuples."""
    if isinstance(option, np.generic | np.ndarray | Tensor):
        option = cast("Any", option).tolist()
    if name == "nesterov":
        return bool(option)
    if name == "eps":
        if not abs(option) <= _FLOAT32_MAX:
            raise ValueError(f"eps must be a number of float32, not {shown(option)}.")
        return float(option)
    # A loaded file may have lists; the cache of rules needs tuples.
    if isinstance(option, list | tuple):
        return tuple(_read("", element) for element in cast("Sequence[Any]", option))
    return str(option) if isinstance(option, str) else option


class Muon(OfMatrices, ModernOptimizer):
    """A step is a mean of gradients with all singular values set to 1.

    `ns_coefficients` is a tuple of three numbers, a tuple of these for each iteration, or
    "original", "quintic" or "polar_express"; `adjust_lr_fn` is "original", "match_rms_adamw" or
    "rms_to_rms". `ns_dtype` is the dtype of iterations, "float32" or "bfloat16". None is float32 on
    the CPU, where torch uses bfloat16, and bfloat16 on other devices. bfloat16 is faster on
    processors with units for it, and changes steps by about one percent.

    `heads` splits fused projections: 3 splits a weight (3 * d, d) into queries, keys and values,
    each a matrix with a scale of its own; (256, 64, 64) gives the rows of each matrix. `layout`
    describes any other arrangement of matrices.

    Source: Jordan 2024, https://kellerjordan.github.io/posts/muon; torch.optim.Muon
    """

    _rule = "MUON"
    _make_rule = staticmethod(muon)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = ORIGINAL,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        heads: Heads = None,
        layout: Layout = None,
        ns_dtype: str | None = None,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class NorMuon(OfMatrices, ModernOptimizer):
    """Muon whose rows are divided by the running root mean square of their elements.

    A step is as long as Muon's; with `update_scale="match_rms"` about as long as AdamW's, as in the
    paper.

    Args:
        update_scale: How long steps are: "preserve_norm" or "match_rms".

    Source: Li et al. 2025, https://arxiv.org/abs/2510.05491
    """

    _rule = "NORMUON"
    _make_rule = staticmethod(normuon)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        beta2: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = ORIGINAL,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        update_scale: str = "preserve_norm",
        *,
        heads: Heads = None,
        layout: Layout = None,
        ns_dtype: str | None = None,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class AdaMuon(OfMatrices, ModernOptimizer):
    """Muon of the signs of the mean; each element is divided by its running root mean square.

    Each step has a root mean square of `lr` times 0.2, as AdamW's steps have. `momentum` is the
    decay of both means. `v_buffer` in the state has the mean squares, in the shape of the
    parameter.

    Source: Si et al. 2025, https://arxiv.org/abs/2507.11005
    """

    _rule = "ADAMUON"
    _choices = _ADAMUONS
    _unread = (*_ADAMUONS, *_LAYOUTS)
    _make_rule = staticmethod(adamuon)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 0.02,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        eps: float = 1e-8,
        ns_coefficients: Coefficients = ORIGINAL,
        *,
        heads: Heads = None,
        layout: Layout = None,
        ns_dtype: str | None = None,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class MuonH(OfMatrices, ModernOptimizer):
    """Muon on a sphere: a step has the parameter's norm times the rate; norms do not change.

    Source: Hyperball, 2026, https://arxiv.org/abs/2606.16899
    """

    _rule = "MUONH"
    _zero_warning = ("radius", "is 0 and has no sphere, so MuonH takes Muon's steps with it.")
    _make_rule = staticmethod(muonh)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = False,
        ns_coefficients: Coefficients = "quintic",
        eps: float = 1e-7,
        ns_steps: int = 5,
        *,
        heads: Heads = None,
        layout: Layout = None,
        ns_dtype: str | None = None,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class OfEigenbases(OfMatrices, ModernOptimizer):
    """Base of SOAP and KLSOAP, which have the same arguments."""

    _counts = True
    _added_options = _LAYOUTS
    _choices = _SOAPS
    _unread = (*_SOAPS, *_LAYOUTS)

    def _arguments(
        self,
        params: Params,
        lr: Rate = 3e-3,
        betas: Betas = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        max_precondition_dim: int = 10000,
        *,
        heads: Heads = None,
        layout: Layout = None,
    ) -> None:
        """Do nothing; the signature declares the arguments of the constructor."""


class SOAP(OfEigenbases):
    """Adam in the eigenbasis of gradient products, renewed every `precondition_frequency` steps.

    The first step computes the basis and moves nothing. A dimension longer than
    `max_precondition_dim` keeps the standard basis.

    Source: Vyas et al. 2024, https://arxiv.org/abs/2409.11321; pytorch_optimizer.SOAP
    """

    _rule = "SOAP"
    _make_rule = staticmethod(soap)


class KLSOAP(OfEigenbases):
    """SOAP in which each factor contains the inverse of the opposite factor, as in KL-Shampoo.

    The first step moves nothing.

    Source: Lin et al. 2025, https://arxiv.org/abs/2509.03378
    """

    _rule = "KLSOAP"
    _make_rule = staticmethod(partial(soap, whitens=True))
