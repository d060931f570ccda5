"""Signatures of constructors: in `inspect` and in stubs."""

from __future__ import annotations

import inspect
import runpy
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg import optim
from thalweg.optim.signatures import parse_notes
from thalweg.optim.step_options import KEYWORDS

STUBS = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "stubs.py"))
NAMES = [
    name
    for name in (*optim.__all__, *(f"tensorflow.{name}" for name in optim.tensorflow.__all__))
    if getattr(attrgetter(name)(optim), "__module__", "").startswith("thalweg.")
    and isinstance(attrgetter(name)(optim), type)
    and issubclass(attrgetter(name)(optim), torch.optim.Optimizer)
]


@pytest.mark.parametrize("name", NAMES)
def test_constructors_annotate_every_option(name: str) -> None:
    cls = attrgetter(name)(optim)
    of_class, (first, *of_init) = (
        [*inspect.signature(function).parameters.values()] for function in (cls, cls.__init__)
    )
    assert first.name == "self"
    assert of_class == of_init
    assert {*KEYWORDS} <= {parameter.name for parameter in of_class}
    for parameter in of_class:
        assert parameter.kind is not parameter.VAR_POSITIONAL
        assert parameter.annotation is not parameter.empty
        assert not isinstance(parameter.annotation, str)
    assert cls.__init__.__qualname__ == f"{cls.__name__}.__init__"


@pytest.mark.parametrize("name", NAMES)
def test_constructors_document_every_argument(name: str) -> None:
    cls = attrgetter(name)(optim)
    notes = parse_notes(cls.__init__.__doc__, "Args:")
    assert [*notes] == [*inspect.signature(cls).parameters]
    assert all(text[0].isupper() or text[0] in '"1`' for text in notes.values())


def test_class_specific_argument_descriptions_are_used() -> None:
    assert "power" in optim.ASGD.__init__.__doc__.partition("alpha: ")[2].splitlines()[0]
    assert "squares" in optim.RMSprop.__init__.__doc__.partition("alpha: ")[2].splitlines()[0]


class _Own(optim.Adam):
    def __init__(self, params: Any, rate: float, *, extra: int = 3) -> None:
        super().__init__(params, lr=rate, clip_grad_norm=1.0)
        self.extra = extra


class _OwnMatrices(optim.Muon):
    def __init__(self, params: Any, rate: float = 0.1) -> None:
        super().__init__(params, lr=rate)


class _OwnTensorFlow(optim.tensorflow.Ftrl):
    def __init__(self, params: Any, rate: float = 0.1) -> None:
        super().__init__(params, lr=rate)


class _Mixin:
    def __init__(self, *args: Any, extra: int = 1, **keywords: Any) -> None:
        self.extra = extra
        super().__init__(*args, **keywords)


class _Beside(_Mixin, optim.Adam):
    pass


class _Plain(optim.Adam):
    pass


@pytest.mark.parametrize(
    ("cls", "expected", "kwargs"),
    [
        (_Own, ["params", "rate", "extra"], {"rate": 0.5, "extra": 4}),
        (_OwnMatrices, ["params", "rate"], {"rate": 0.5}),
        (_OwnTensorFlow, ["params", "rate"], {"rate": 0.5}),
        (_Beside, ["args", "extra", "keywords"], {"lr": 0.5, "extra": 2}),
        (_Plain, [*inspect.signature(optim.Adam).parameters], {"lr": 0.5, "ema_decay": 0.9}),
    ],
)
def test_user_subclasses_have_correct_signatures(cls: Any, expected: Any, kwargs: Any) -> None:
    assert [*inspect.signature(cls).parameters] == expected
    param = torch.nn.Parameter(torch.ones(2, 2))
    opt = cls([param], **kwargs)
    assert opt.param_groups[0]["lr"] == 0.5
    param.grad = torch.ones(2, 2)
    opt.step()
    assert not torch.equal(param, torch.ones(2, 2))


@pytest.mark.parametrize("module", STUBS["MODULES"])
def test_stubs_equal_constructors(module: str) -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("stubs say what a newer torch takes")
    stub = STUBS["path_of"](module).read_text()
    assert stub == STUBS["stub_of"](module), "write it: python tools/stubs.py"
