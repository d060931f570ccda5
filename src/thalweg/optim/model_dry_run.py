"""Forward pass of a model on stand-ins without memory, which shows how weights are used."""

# torch does not annotate `fork_rng`, and a module has no public dictionaries of its members.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from thalweg.optim.projection_trace import ProjectionTrace
from thalweg.optim.weight_use import WeightUse

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs",
          "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")  # fmt: skip
_TOKENS = 4


class DryRun:
    """Record of how a forward pass uses the parameters of two or more dimensions of a model.

    Args:
        model: The model, which is not run itself.
        inputs: A tuple of positional arguments, a dict of keyword arguments, or one argument. None
            makes inputs from the model's signature.

    Attributes:
        uses: {id(parameter): use} of parameters of two or more dimensions.
        error: The error that ended the pass of the whole model, or None.
    """

    def __init__(self, model: nn.Module, inputs: Any = None) -> None:
        model = _unwrapped(model)
        copies = StandIns(model)
        trace = ProjectionTrace(list(copies.weights.values()))
        self.uses: dict[int, WeightUse] = dict(zip(copies.weights, trace.uses, strict=True))
        self.error: Exception | None = None
        args, kwargs = _arguments(model, inputs)
        # The pass must not advance the user's random generator.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                with trace:
                    outputs = copies.model(*args, **kwargs)
                trace.mark_returned(outputs, of_model=True)
            # The code of a model may raise anything.
            except Exception as error:
                self.error = error
            uses = {id(copies.weights[key]): use for key, use in self.uses.items()}
            _run_layers(copies.model, trace, uses)


def _run_layers(module: nn.Module, trace: ProjectionTrace, uses: Mapping[int, WeightUse]) -> None:
    """Run submodules whose weights were not used, so that `trace` records their use.

    A submodule runs if it has several traced weights, and none was used so far. A module runs
    before its children. Errors of modules are ignored.

    Args:
        module: A copy of the model, or a submodule of the copy.
        uses: {id(weight): record of its use}.
    """
    unused = [
        param
        for param in module.parameters()
        if id(param) in uses and not uses[id(param)].is_followed
    ]
    if not unused or not (module._modules or module._parameters):
        return
    traced_params = [param for param in module.parameters() if id(param) in uses]
    is_layer = len(traced_params) > 1 and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    if len(unused) == len(traced_params) and is_layer:
        # If the module needs other arguments, its children are run instead.
        with suppress(Exception):
            args = _layer_arguments(module)
            with trace:
                outputs = module(*args)
            trace.mark_returned(outputs, of_model=False)
    for child in module.children():
        _run_layers(child, trace, uses)


def _layer_arguments(module: nn.Module) -> list[Any]:
    """Return arguments for a layer: activations first, then None for each other required one."""
    required = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [_first_input(module), *[None] * (len(required) - 1)]


class StandIns:
    """Copy of a model without hooks, with meta tensors for parameters of two dimensions or more.

    Attributes:
        model: The copy, in evaluation mode.
        weights: The meta tensors by the `id` of the parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weights: dict[int, Tensor] = {}
        self._copies: dict[int, Any] = {}
        self.model: nn.Module = self._module(model)
        # Attributes may refer to modules anywhere in the model, so that all copies exist first.
        for module in list(self._copies.values()):
            if isinstance(module, nn.Module):
                for name, attribute in list(module.__dict__.items()):
                    module.__dict__[name] = self._reference(attribute)

    def _module(self, module: nn.Module) -> nn.Module:
        """Return the copy of a module with copies of its children; a module is copied only once."""
        if id(module) in self._copies:
            return self._copies[id(module)]
        cls = type(module)
        # `fully_shard` replaces the class by a subclass, whose forward pass would gather
        # parameters.
        if cls.__name__.startswith("FSDP"):
            cls = next((base for base in cls.__mro__ if not base.__name__.startswith("FSDP")), cls)
        # `deepcopy` would copy the memory of weights; a constructor would need arguments.
        new = cast("nn.Module", object.__new__(cls))
        self._copies[id(module)] = new
        attributes = dict(vars(module))
        # A patched `forward` is bound to the original module.
        attributes.pop("forward", None)
        # PEFT then runs the base layer alone, whose outputs define the layout of `lora_B`.
        overrides: dict[str, Any] = {"_compiled_call_impl": None, "_disable_adapters": True}
        overrides |= {name: OrderedDict() for name in _HOOKS}
        attributes |= {name: x for name, x in overrides.items() if name in attributes}
        attributes |= {
            "training": False,
            "_parameters": {name: self._param(x) for name, x in module._parameters.items()},
            "_buffers": {name: _buffer(x) for name, x in module._buffers.items()},
            "_modules": {
                name: None if child is None else self._module(child)
                for name, child in module._modules.items()
            },
        }
        new.__dict__ = attributes
        return new

    def _param(self, param: nn.Parameter | None) -> nn.Parameter | None:
        """Return a stand-in for a parameter: a meta tensor, or zeros for fewer than two dimensions.

        Return None for None.
        """
        if param is None or id(param) in self._copies:
            return None if param is None else self._copies[id(param)]
        dtype = torch.float32 if param.is_floating_point() else param.dtype
        is_weight = param.dim() > 1
        zeros = torch.zeros(param.shape, dtype=dtype, device="meta" if is_weight else "cpu")
        new = nn.Parameter(zeros, requires_grad=False)
        self._copies[id(param)] = new
        if is_weight:
            self.weights[id(param)] = new
        return new

    def _reference(self, attribute: Any) -> Any:
        """Return an attribute of a module; copies replace modules that the attribute contains."""
        if isinstance(attribute, nn.Module):
            return self._copies.get(id(attribute), attribute)
        if type(attribute) in (list, tuple) and any(
            isinstance(element, nn.Module) for element in attribute
        ):
            return type(attribute)(self._reference(element) for element in attribute)
        if isinstance(attribute, MethodType) and id(attribute.__self__) in self._copies:
            return MethodType(attribute.__func__, self._copies[id(attribute.__self__)])
        return attribute


def _buffer(buffer: Tensor | None) -> Tensor | None:
    """Return a CPU copy of a buffer, zeros for one without memory; None stays None."""
    if buffer is None:
        return None
    if buffer.is_meta:
        return torch.zeros(buffer.shape, dtype=buffer.dtype, device="cpu")
    return buffer.detach().to("cpu", copy=True)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model in a wrapper such as DistributedDataParallel or a compiled module."""
    for name in ("_orig_mod", "module"):
        inner = model._modules.get(name)
        if inner is not None and len(model._modules) == 1:
            return _unwrapped(inner)
    return model


def _arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (positional, keyword) arguments of a forward pass.

    If `inputs` is None, the arguments are token ids or zeros of shapes that fit the model.
    """
    if isinstance(inputs, Mapping):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if inputs is not None:
        return cast("tuple[Any, ...]", inputs) if isinstance(inputs, tuple) else (inputs,), {}
    names = inspect.signature(model.forward).parameters
    ids = torch.arange(_TOKENS, dtype=torch.int64, device="cpu")[None]
    kwargs: dict[str, Any] = {}
    if "use_cache" in names:
        kwargs["use_cache"] = False
    if "input_ids" in names:
        kwargs["input_ids"] = ids
        if "decoder_input_ids" in names:
            kwargs["decoder_input_ids"] = ids
        return (), kwargs
    return (_first_input(model),), kwargs


def _first_input(model: nn.Module) -> Tensor:
    """Return zeros of a shape that the first layer of a model accepts."""
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return torch.zeros(1, _TOKENS, dtype=torch.int64, device="cpu")
        if isinstance(module, nn.Linear):
            return torch.zeros(1, _TOKENS, module.in_features, dtype=torch.float32, device="cpu")
        if isinstance(module, nn.Conv1d):
            return torch.zeros(1, module.in_channels, 64, dtype=torch.float32, device="cpu")
        if isinstance(module, nn.Conv2d):
            return torch.zeros(
                1, module.in_channels, *_image_size(model), dtype=torch.float32, device="cpu"
            )
    return torch.zeros(1, _TOKENS, dtype=torch.int64, device="cpu")


def _image_size(model: nn.Module) -> tuple[int, int]:
    """Return (height, width) of a model's images from its config, or (64, 64)."""
    options: Mapping[str, Any] | None = getattr(model, "pretrained_cfg", None)
    if isinstance(options, Mapping) and "input_size" in options:
        return options["input_size"][-2:]
    for module in model.modules():
        size = getattr(getattr(module, "config", None), "image_size", None)
        if isinstance(size, int):
            return size, size
    return 64, 64
