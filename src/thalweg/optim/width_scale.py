"""Learning rates and weight decays for a wide model, scaled from those of a narrow base model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch.nn import Module

from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.optim.class_lookup import kind_of

Shape = tuple[int | None, ...]
Shapes = Module | Mapping[str, Sequence[int | None]]
# A base, or a base and a second model whose other dimensions are the widths.
WidthScale = Shapes | tuple[Shapes, Shapes]

# Rules whose steps do not follow the size of the gradient, element by element.
_ADAM_LIKE = frozenset((
    "ADOPT", "AdEMAMix", "Adagrad", "Adam", "AdamW", "AdamWCautiousDecay", "AdamWCoupled",
    "AdamWDecoupled", "AdamWIndependent", "Adamax", "Adan", "CautiousAdamW", "LaProp", "Lion",
    "MARS", "NAdam", "NAdamW", "RAdam", "RMSprop", "ScheduleFreeAdamW", "StableAdamW",
))  # fmt: skip
_SGD_LIKE = frozenset(("ASGD", "SGD", "ScheduleFreeSGD"))
# Rules whose steps have singular values of 1, or elements of a known size.
_SPECTRAL = frozenset(("AdaMuon", "Muon", "NorMuon"))
# Rules whose decay is not multiplied by the rate.
_INDEPENDENT_DECAY = frozenset(("AdamWIndependent",))


class WidthFactor(NamedTuple):
    """Factor `up / down` of a learning rate. Most rules use only `up` or only `down`."""

    up: float = 1.0
    down: float = 1.0


class BaseWidths:
    """Shapes of the parameters in the base model, with which learning rates are scaled.

    Args:
        width_scale: As in `groups`.

    Raises:
        InvalidTypeError: `width_scale` has another type.
        InvalidArgumentError: A name or a shape does not match the module.
    """

    def __init__(self, module: Module, width_scale: WidthScale) -> None:
        pair = width_scale if isinstance(width_scale, tuple) else (width_scale,)
        if len(pair) not in (1, 2):
            raise _make_type_error(width_scale)
        shapes = {name: tuple(param.shape) for name, param in module.named_parameters()}
        base = _read_shapes(pair[0], shapes)
        references = shapes if len(pair) == 1 else _read_shapes(pair[1], shapes)
        # A file of mup marks dimensions that are not widths by None, all others are widths.
        marks_dims = any(None in shape for shape in base.values())
        self._ratios: dict[str, tuple[float | None, ...]] = {}
        self._base: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            dims = list(zip(base[name], references[name], shape, strict=True))
            self._ratios[name] = tuple(
                size / width if width is not None and (marks_dims or width != reference) else None
                for width, reference, size in dims
            )
            for (width, _, size), ratio in zip(dims, self._ratios[name], strict=True):
                if ratio is None and width not in (None, size):
                    raise InvalidArgumentError(
                        f"{name!r} has shape {shape}, its base {base[name]}, and both models of"
                        f" width_scale have a dimension of {width}: only widths may differ."
                    )
            self._base[name] = tuple(size if width is None else width for width, _, size in dims)
        self._shapes = shapes

    def scale(self, name: str, options: Group, scale_decay: bool) -> WidthFactor:
        """Scale a parameter's learning rate, and its weight decay inversely; return the factor.

        Args:
            options: The rule of the parameter, as "rule", and its options; changed in place. If the
                decay is missing, the rule's default is scaled.
            scale_decay: False to keep the decay.

        Raises:
            InvalidArgumentError: No factor is known for the rule, or for a parameter of this shape.
        """
        factor = self._factor(name, options)
        if factor.up == factor.down == 1.0:
            return factor
        options["lr"] = options["lr"] * factor.up / factor.down
        argument = kind_of(options["rule"]).constructor_signature.parameters.get("weight_decay")
        if scale_decay and argument is not None and options["rule"] not in _INDEPENDENT_DECAY:
            decay = options.get("weight_decay", argument.default)
            options["weight_decay"] = decay * factor.down / factor.up
        return factor

    def _factor(self, name: str, options: Group) -> WidthFactor:
        """Return the factor of a parameter's learning rate.

        The factor depends on the rule, and on the number of dimensions that differ from the base
        shape. Raise InvalidArgumentError if no factor is known for the rule, or for a parameter of
        this shape.
        """
        ratios, rule = self._ratios[name], options["rule"]
        widths = [ratio for ratio in ratios if ratio is not None]
        if len(widths) > 2:
            raise InvalidArgumentError(
                f"{name!r} of shape {self._shapes[name]} has {len(widths)} dimensions that differ"
                f" from its base {self._base[name]}; a matrix has two."
            )
        if rule in _ADAM_LIKE:
            return WidthFactor(down=widths[-1]) if len(widths) == 2 else WidthFactor()
        if rule in _SGD_LIKE:
            if len(widths) == 2:
                fan_out, fan_in = (1.0 if ratio is None else ratio for ratio in ratios[:2])
                return WidthFactor(down=fan_in / fan_out)
            return WidthFactor(up=widths[0]) if widths else WidthFactor()
        if rule in _SPECTRAL:
            return self._spectral_factor(name, options) if widths else WidthFactor()
        raise InvalidArgumentError(
            f"width_scale has no factor for {name!r}: known are those of"
            f" {', '.join(sorted(_ADAM_LIKE | _SGD_LIKE | _SPECTRAL))}, not of"
            f" {show_value(rule)}."
        )

    def _spectral_factor(self, name: str, options: Group) -> WidthFactor:
        """Return the factor that keeps the spectral norm of steps at `sqrt(rows / columns)`."""
        shape, base, head_count = self._shapes[name], self._base[name], options.get("heads") or 1
        if self._ratios[name][:2].count(None):
            raise InvalidArgumentError(
                f"{name!r} of shape {shape} has one dimension that differs from its base {base},"
                f" and {options['rule']} with width_scale is for matrices of which both do: add a"
                f" selector for it, such as {{{name!r}: 'AdamW'}}; or give a pair of models, which"
                " tell the widths that have not changed."
            )
        if not isinstance(head_count, int) or options.get("layout") is not None:
            raise InvalidArgumentError(
                f"width_scale has no factor for {name!r} with blocks of given sizes: leave out"
                " layout=, or give heads= a number."
            )
        matrix, base_matrix = (
            (sizes[0] // head_count, math.prod(sizes[1:])) for sizes in (shape, base)
        )
        up_factor = (matrix[0] * base_matrix[1] / (matrix[1] * base_matrix[0])) ** 0.5
        adjust = options.get("adjust_lr_fn")
        if options["rule"] == "AdaMuon" or options.get("update_scale") == "match_rms":
            adjust = "match_rms_adamw"
        with importing:
            from thalweg.rules.modern.newton_schulz import scale_of
        return WidthFactor(up_factor, scale_of(adjust, *matrix) / scale_of(adjust, *base_matrix))


def _read_shapes(shapes: object, target: Mapping[str, tuple[int, ...]]) -> dict[str, Shape]:
    """Return {name: shape} of a base model, validated against the shapes of the module.

    Args:
        shapes: A module or {name: shape}. A size may be None if the dimension is not a width.
        target: {name: shape} of the module.

    Raises:
        InvalidTypeError: `shapes` is not a module and not a mapping.
        InvalidArgumentError: A name or a number of dimensions differs.
    """
    if isinstance(shapes, Module):
        by_name: Mapping[str, Any] = {
            name: param.shape for name, param in shapes.named_parameters()
        }
    elif isinstance(shapes, Mapping):
        by_name = cast("Mapping[str, Any]", shapes)
    else:
        raise _make_type_error(shapes)
    if by_name.keys() != target.keys():
        absent, surplus = sorted(target.keys() - by_name), sorted(by_name.keys() - target)
        problems = [f"lacks {', '.join(map(repr, absent[:3]))}"] if absent else []
        problems += [f"has {', '.join(map(repr, surplus[:3]))}"] if surplus else []
        raise InvalidArgumentError(
            f"width_scale {' and '.join(problems)}: its names must be those of the"
            f" {len(target)} parameters of the module."
        )
    checked: dict[str, Shape] = {}
    for name, shape in by_name.items():
        is_shape = isinstance(shape, Sequence) and not isinstance(shape, str)
        dims = tuple(cast("Sequence[object]", shape)) if is_shape else ()
        are_sizes = all(dim is None or (type(dim) is int and dim > 0) for dim in dims)
        if not is_shape or not are_sizes or len(dims) != len(target[name]):
            raise InvalidArgumentError(
                f"The base shape of {name!r} is {show_value(shape)}; expected"  # pyright: ignore[reportUnknownArgumentType]
                f" {len(target[name])} sizes, None for a dimension that is not a width, as the"
                f" parameter has shape {target[name]}."
            )
        checked[name] = cast("Shape", dims)
    return checked


def _make_type_error(width_scale: object) -> InvalidTypeError:
    return InvalidTypeError(
        "width_scale must be a module of base widths, a dict of its shapes by name, or a pair of"
        f" two of them, not {show_value(width_scale)}."
    )
