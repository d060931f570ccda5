"""`optim.matrix_layouts` and `for_model`: matrices of parameters from a forward pass."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thalweg import optim
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.optim.module_layouts import uses_whole_outputs

D = 12
HEADS, HEAD = 3, 4


class Layer(nn.Module):
    """Layer of one weight `w`, whose forward pass is a function of the weight and activations.

    Args:
        shape: The shape of the weight.
        function: Computes activations of `D` features from the weight and activations.
    """

    def __init__(self, shape: tuple[int, ...], function: Callable[..., Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(shape))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w, x)


class Model(nn.Module):
    """Embedding, a layer, and an output layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, D)
        self.layer = layer
        self.mix = nn.Linear(D, D, bias=False)
        self.head = nn.Linear(D, 7)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.mix(x + self.layer(x)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the result of attention for tensors (batch, tokens, heads, features)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def in_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, HEAD))


def split_qkv(w: Tensor, x: Tensor) -> Tensor:
    q, k, v = F.linear(x, w).split([D, HEAD, HEAD], -1)
    k, v = (in_heads(y).expand(-1, -1, HEADS, -1) for y in (k, v))
    return attention(in_heads(q), k, v)


def chunked_weight(w: Tensor, x: Tensor) -> Tensor:
    return attention(*(in_heads(F.linear(x, part)) for part in w.chunk(3)))


def qkv_per_head(w: Tensor, x: Tensor) -> Tensor:
    return attention(*F.linear(x, w).view(*x.shape[:-1], HEADS, 3, HEAD).unbind(-2))


def grouped_heads(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w).view(*x.shape[:-1], 2, 3 + 2, HEAD)
    q, k, v = y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]
    k, v = (z.expand_as(q).flatten(2, 3) for z in (k, v))
    return attention(q.flatten(2, 3), k, v)[..., :D]


def rotated(q: Tensor) -> Tensor:
    first, second = q.chunk(2, -1)
    return q * 0.5 + torch.cat((-second, first), -1) * 0.5


def partial_rotary(w: Tensor, x: Tensor) -> Tensor:
    q, k, v = (in_heads(y) for y in F.linear(x, w).chunk(3, -1))
    q, k = (torch.cat((rotated(y[..., :2]), y[..., 2:]), -1) for y in (q, k))
    return attention(q, k, v)


def interleaved_rotary(w: Tensor, x: Tensor) -> Tensor:
    q, k, v = (in_heads(y) for y in F.linear(x, w).chunk(3, -1))
    turned = torch.empty_like(q)
    turned[..., :2].copy_(q[..., ::2] * 0.5 - q[..., 1::2] * 0.5)
    turned[..., 2:] = q[..., 1::2] * 0.5 + q[..., ::2] * 0.5
    k = torch.view_as_real(torch.view_as_complex(k.unflatten(-1, (-1, 2))) * 1j).flatten(-2)
    return attention(turned, k, v)


def latent(w: Tensor, x: Tensor) -> Tensor:
    """Split heads into keys without positions and values, as multi-head latent attention does."""
    k, v = F.linear(x, w).view(*x.shape[:-1], HEADS, 3 + HEAD).split([3, HEAD], -1)
    k = torch.cat((k, x[..., :1, None].expand(*k.shape[:-1], 1)), -1)
    return attention(in_heads(x), k, v)


def gate_and_up(w: Tensor, x: Tensor) -> Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up


def alternating(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w)
    return F.silu(y[..., ::2].clamp(max=7)) * (y[..., 1::2] + 1)


def gated_linear_unit(w: Tensor, x: Tensor) -> Tensor:
    return F.glu(F.linear(x, w))


def through_convolution(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w).transpose(1, 2)
    y = F.conv1d(y, torch.ones(y.shape[1], 1, 3), padding=2, groups=y.shape[1])[..., :-2]
    gate, up = F.silu(y).transpose(1, 2).chunk(2, -1)
    return gate * up


def conv1d_of_transformers(w: Tensor, x: Tensor) -> Tensor:
    y = torch.addmm(torch.zeros(w.shape[1]), x.view(-1, D), w).view(*x.shape[:-1], -1)
    return attention(*(in_heads(z) for z in y.split(D, -1)))


def heads_by_einsum(w: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("btd,dhn->bthn", x, w).tanh().matmul(torch.ones(HEAD, HEAD)).flatten(2)


def merged_by_einsum(w: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bthn,dhn->btd", in_heads(x), w)


def experts_by_loop(w: Tensor, x: Tensor) -> Tensor:
    return sum(gate_and_up(w[expert], x) for expert in torch.arange(2))  # pyright: ignore


def experts_in_batch(w: Tensor, x: Tensor) -> Tensor:
    tokens = x.view(1, -1, D).expand(w.shape[0], -1, -1)
    gate, up = torch.bmm(tokens, w).chunk(2, -1)
    return (gate * up).sum(0).view_as(x)


def alternating_experts(w: Tensor, x: Tensor) -> Tensor:
    y = torch.matmul(x, w[torch.tensor([1, 0])[0]])
    return y[..., ::2].sigmoid() * y[..., 1::2]


def selected_experts(w: Tensor, x: Tensor) -> Tensor:
    tokens = x.reshape(-1, D)
    experts = torch.zeros(len(tokens), dtype=torch.int64)
    gate, up = torch.bmm(w[experts], tokens[..., None])[..., 0].chunk(2, -1)
    return (gate * up).view_as(x)


def flat_experts(w: Tensor, x: Tensor) -> Tensor:
    """Use one of four experts whose rows are below each other."""
    return F.linear(x, w.view(4, D, D)[1]).tanh()


def flat_experts_transposed(w: Tensor, x: Tensor) -> Tensor:
    return x.matmul(w.view(4, D, D)[1]).tanh()


def maximum_over_time(w: Tensor, x: Tensor) -> Tensor:
    return x + F.linear(x, w).max(1, keepdim=True)[0]


def maximum_of_pieces(w: Tensor, x: Tensor) -> Tensor:
    return F.linear(x, w).unflatten(-1, (D, 2)).max(-1).values


def with_adapter(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w)
    gate, up = (y + F.linear(x, torch.ones(2 * D, D))).chunk(2, -1)
    return gate * up


CASES: dict[Callable[[Tensor, Tensor], Tensor], tuple[tuple[int, ...], str]] = {
    split_qkv: ((D + 2 * HEAD, D), "rows=12+4+4"),
    chunked_weight: ((3 * D, D), "rows=3"),
    qkv_per_head: ((3 * D, D), "rows=4+4+4 interleaved"),
    grouped_heads: ((10 * HEAD, D), "rows=12+4+4 interleaved"),
    partial_rotary: ((3 * D, D), "rows=3"),
    interleaved_rotary: ((3 * D, D), "rows=3"),
    latent: ((HEADS * 7, D), "rows=3+4 interleaved"),
    gate_and_up: ((2 * D, D), "rows=2"),
    alternating: ((2 * D, D), "rows=2 interleaved"),
    gated_linear_unit: ((2 * D, D), "rows=2"),
    through_convolution: ((2 * D, D), "rows=2"),
    conv1d_of_transformers: ((D, 3 * D), "columns=3 transposed"),
    heads_by_einsum: ((D, HEADS, HEAD), "transposed"),
    merged_by_einsum: ((D, HEADS, HEAD), "rows=1"),
    experts_by_loop: ((2, 2 * D, D), "batch=1 rows=2"),
    experts_in_batch: ((2, D, 2 * D), "batch=1 columns=2 transposed"),
    alternating_experts: ((2, D, 2 * D), "batch=1 columns=2 interleaved transposed"),
    selected_experts: ((2, 2 * D, D), "batch=1 rows=2"),
    flat_experts: ((4 * D, D), "rows=4"),
    flat_experts_transposed: ((4 * D, D), "rows=4 transposed"),
    with_adapter: ((2 * D, D), "rows=2"),
    maximum_over_time: ((D, D), "rows=1"),
    maximum_of_pieces: ((2 * D, D), "rows=1"),
}


def decided(layer: nn.Module, **options: Any) -> dict[str, str]:
    choices = optim.matrix_layouts(Model(layer), **options)
    return {choice.name: str(choice.layout or "AdamW") for choice in choices}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_a_forward_pass_defines_the_matrices_of_its_weight(
    function: Callable[..., Any],
) -> None:
    shape, layout = CASES[function]
    assert decided(Layer(shape, function)) == {
        "embed.weight": "AdamW",
        "layer.w": layout,
        "mix.weight": "rows=1",
        "head.weight": "AdamW",
        "head.bias": "AdamW",
    }


def router(w: Tensor, x: Tensor) -> Tensor:
    weights, _ = F.linear(x, w).softmax(-1).topk(2)
    return x * weights.sum(-1, keepdim=True)


def switch_router(w: Tensor, x: Tensor) -> Tensor:
    weights, _ = F.linear(x, w).softmax(-1).max(dim=-1, keepdim=True)
    return x * weights


def switch_router_of_values(w: Tensor, x: Tensor) -> Tensor:
    return x * F.linear(x, w).softmax(-1).amax(-1, keepdim=True)


NOT_MATRICES: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "router, whose largest outputs are selected": ((4, D), router),
    "router, whose largest outputs are selected ": ((4, D), switch_router),
    "router, whose largest outputs are selected  ": ((4, D), switch_router_of_values),
    "no product uses it": ((1, 1, D), lambda w, x: x + w),
    "rows are looked up": ((9, D), lambda w, x: x + w[torch.arange(x.shape[1])]),
    "a vector": ((1, D), lambda w, x: x * F.linear(x, w).sigmoid()),
    "convolution in groups": (
        (D, 1, 3),
        lambda w, x: F.conv1d(x.mT, w, padding=1, groups=D).mT,
    ),
}


@pytest.mark.parametrize("reason", NOT_MATRICES)
def test_adamw_updates_what_multiplies_nothing_with_the_reason(reason: str) -> None:
    choices = optim.matrix_layouts(Model(Layer(*NOT_MATRICES[reason])))
    assert (choices["layer.w"].kind, choices["layer.w"].reason) == (
        "AdamW",
        f"Layer: {reason.rstrip()}",
    )


def overlapping(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w)
    return y[..., :16].matmul(torch.ones(16, D)) + y[..., 8:].matmul(torch.ones(16, D))


def uneven(w: Tensor, x: Tensor) -> Tensor:
    y = F.linear(x, w)
    first, second = torch.cat((y[..., :3], y[..., 12:21]), -1), y[..., 3:12]
    return first.matmul(torch.ones(D, D)) + second.matmul(torch.ones(9, D))


UNDECIDED: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "used in parts that overlap": ((2 * D, D), overlapping),
    "blocks that do not repeat evenly": ((21, D), uneven),
    "did not multiply with it": ((D, D), lambda w, x: x),
    "neither its rows nor its columns": (
        (2, D, D),
        lambda w, x: torch.einsum("btd,edh->bteh", x, w).relu().sum(2),
    ),
    "could not be followed": (
        (2 * D, D),
        lambda w, x: F.linear(x, w)[..., :D].tanh() * 2 @ torch.ones(D, D),
    ),
}


@pytest.mark.parametrize("reason", UNDECIDED)
def test_an_undecided_weight_raises_with_the_line_that_decides_it(reason: str) -> None:
    layer = Layer(*UNDECIDED[reason])
    with pytest.raises(InvalidArgumentError, match=reason) as error:
        decided(layer)
    assert "'layer.w'" in str(error.value)
    assert "of a Layer" in str(error.value)
    layout = "rows=1" if layer.w.dim() == 2 else "batch=1"
    assert f"layouts={{'layer.w': {layout!r}}}" in str(error.value)
    assert decided(layer, layouts={"layer.w": layout})["layer.w"] == layout
    assert decided(layer, layouts={"layer.*": "AdamW"})["layer.w"] == "AdamW"


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"nothing.*": "rows=1"}, "selects no parameter"),
        ({"layer.w": "rows=5"}, "'layer.w': The matrix layout 'rows=5' does not fit"),
        ({"layer.*": "rows=1", "*.w": "AdamW"}, "two entries"),
        ({"layer.w": "row=1"}, "not a matrix layout"),
        ({"layer.w": None}, "not None"),
    ],
)
def test_a_wrong_layout_raises(layouts: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        decided(Layer((2 * D, D), gate_and_up), layouts=layouts)


def test_a_name_comes_before_a_pattern() -> None:
    layouts = {"*": "AdamW", "layer.w": "rows=3"}
    assert decided(Layer((2 * D, D), gate_and_up), layouts=layouts)["layer.w"] == "rows=3"


def test_classes_of_torch_decide_about_their_own_weights() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(D, HEADS)
            self.rnn = nn.LSTM(D, D)
            self.up = nn.ConvTranspose1d(D, D, 3, padding=1)
            self.conv = nn.Conv1d(D, D, 3, padding=1)
            self.norm = nn.LayerNorm([1, D])

        def forward(self, x: Tensor) -> Tensor:
            x = self.attention(x, x, x)[0] + self.rnn(x)[0]
            return self.norm(self.conv(self.up(x.mT)).mT.unsqueeze(-2)).squeeze(-2)

    layouts = decided(Layers())
    assert {name: text for name, text in layouts.items() if "bias" not in name} == {
        "embed.weight": "AdamW",
        "layer.attention.in_proj_weight": "rows=3",
        "layer.attention.out_proj.weight": "rows=1",
        "layer.rnn.weight_ih_l0": "rows=4",
        "layer.rnn.weight_hh_l0": "rows=4",
        "layer.up.weight": "AdamW",
        "layer.conv.weight": "rows=1",
        "layer.norm.weight": "AdamW",
        "mix.weight": "rows=1",
        "head.weight": "AdamW",
    }


def test_a_tied_output_layer_is_an_embedding() -> None:
    model = Model(nn.Identity())
    model.head.weight = model.embed.weight
    choices = optim.matrix_layouts(model)
    assert [choice.name for choice in choices] == ["embed.weight", "mix.weight", "head.bias"]
    assert choices["embed.weight"].kind == "AdamW"


def test_a_layer_that_the_pass_does_not_reach_runs_alone() -> None:
    class Skipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleDict({"fc": nn.Linear(D, 2 * D), "out": nn.Linear(D, D)})
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return x

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D)

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            return self.out(gate_and_up(self.fc.weight, x))

    layer = Skipped()
    with pytest.raises(InvalidArgumentError, match=r"'layer.inner.fc.weight'"):
        decided(layer)
    layouts = decided(layer, layouts={"layer.inner.*.weight": "AdamW"})
    assert layouts["layer.block.fc.weight"] == "rows=2"
    assert layouts["layer.block.out.weight"] == "rows=1"


# Statements that divide the outputs of `self.fc`, and statements that use them as a whole.
DIVIDED = [
    "a, b = self.fc(x).chunk(2, -1)", "a, b = torch.chunk(self.fc(x), 2, dim=-1)",
    "a, b = torch.split(\n self.fc(x), 4)", "y = torch.tensor_split(self.fc(x), 2)",
    "y = F.glu(self.fc(x))", "y = F.glu(F.silu(self.fc(x)))",
    "y = rearrange(self.fc(x), 'b (h d) -> b h d')",
    "y = einops.rearrange(self.fc(x), 'b (h d) -> b h d')",
    "y = torch.unflatten(self.fc(x), -1, (2, -1))",
    "y = torch.unbind(self.fc(x))", "y = self.fc(x)[..., :4]", "y = self.fc(f(x)[0])[..., :4]",
    "a, b = self.fc(x)", "y = self.fc(x).float(); z = y * 2; a, b = torch.chunk(z, 2)",
    "y: Tensor = self.act(self.fc(x)); y = y.view(2, 3)", "y = [z for z in self.fc(x)]",
    "y = self.shape(self.fc(x)); y = y.view(2, 3)", "y = torch.relu(self.fc(x))[..., ::2]",
    "a, b = torch.chunk(input=self.fc(x), chunks=2)", "y = rearrange(tensor=self.fc(x), pattern=p)",
    "self.h = self.fc(x); a, b = self.h.chunk(2)", "self.h: Tensor = self.fc(x); self.h.chunk(2)",
    "y = x; y *= self.fc(x); a, b = y.chunk(2)",
    "y = self.fc(x) if c else self.other(x); a, b = y.chunk(2)",
    "y = c if c else self.fc(x); a, b = y.chunk(2)",
    "a, b = torch.cat([x, self.fc(x)]).chunk(2)", "y = torch.cat(tensors=(self.fc(x), x))[:2]",
]  # fmt: skip
WHOLE = [
    "y = self.fc(x)", "return self.out(F.silu(self.fc(x)))",
    "y = self.out(self.fc(x)); y.view(2, 3)",
    "x = x + self.fc(x); a, b = x.chunk(2)", "n = self.fc(x).size(0); y = x.view(n, -1)",
    "a, b = self.attend(self.fc(x))", "y = self.fc(x.view(2, 3))", "y = f(self.fc(x))[0]",
    "self.h = self.fc(x); n, m = self.other.chunk(2)",
    "x += self.fc(x); a, b = x.chunk(2)", "y = self.out(input=self.fc(x)); y.view(2, 3)",
]  # fmt: skip


@pytest.mark.parametrize("body", DIVIDED + WHOLE)
def test_source_shows_divided_outputs(body: str) -> None:
    lines = ["def forward(self, x):", " self.out = nn.Linear(2, 2)", f" {body}"]
    assert uses_whole_outputs(ast.parse("\n".join(lines)), "self.fc") == (body in WHOLE)
    assert not uses_whole_outputs(ast.parse("\n".join(lines)), "self.other")


def test_inputs_reach_what_the_signature_does_not_say() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(D, 2 * D), nn.Linear(D, 2)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.out(gate_and_up(self.fc.weight, x) * scale)

    with pytest.raises(InvalidArgumentError, match=r"output layer.*inputs=.*TypeError.*scale"):
        optim.matrix_layouts(TwoInputs())
    x, scale = torch.zeros(1, D), torch.ones(1)
    for inputs in ((x, scale), {"x": x, "scale": scale}):
        choices = optim.matrix_layouts(TwoInputs(), inputs=inputs)
        assert str(choices["fc.weight"].layout) == "rows=2"
        assert choices["out.weight"].reason == "Linear: output layer"


def test_the_model_does_not_run_and_does_not_change() -> None:
    model = Model(Layer((2 * D, D), gate_and_up)).train()
    model.layer.register_buffer("count", torch.zeros(()))
    model.register_forward_pre_hook(lambda *_: pytest.fail("a hook ran"))
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    optim.matrix_layouts(model)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert model.layer.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "place",
    [
        "meta",
        torch.bfloat16,
        # The import of torch's compiler takes seconds.
        pytest.param("compiled", marks=pytest.mark.slow),
        "wrapped",
        "frozen",
    ],
)
def test_a_model_of_any_device_dtype_or_wrapper_has_the_same_layouts(place: Any) -> None:
    model: Any = Model(Layer((2 * D, D), gate_and_up))
    if place == "compiled":
        model = torch.compile(model, backend="eager")
    elif place == "wrapped":
        model = nn.DataParallel(model)
    elif place == "frozen":
        model.embed.requires_grad_(False)
    else:
        model = model.to(place)
    layouts = {choice.name: str(choice.layout) for choice in optim.matrix_layouts(model)}
    name = next(name for name in layouts if name.endswith("layer.w"))
    assert layouts[name] == "rows=2"
    assert len(layouts) == 5 - (place == "frozen")


def test_the_table_is_aligned() -> None:
    lines = str(optim.matrix_layouts(Model(Layer((2 * D, D), gate_and_up)))).splitlines()
    assert lines[0].split() == ["parameter", "shape", "kind", "layout", "reason"]
    assert lines[2].split()[:6] == ["layer.w", "24", "x", "12", "matrix", "rows=2"]
    assert len({line.index(kind) for line, kind in zip(lines[1:3], ("AdamW", "matrix"))}) == 1


@pytest.mark.parametrize("rule", ["Muon", "NorMuon", "MuonH", "SOAP", "KLSOAP"])
def test_for_model_makes_groups_of_all_parameters(rule: str) -> None:
    torch.manual_seed(0)
    model = Model(Layer((3 * D, D), chunked_weight))
    nn.init.normal_(model.layer.w)  # pyright: ignore
    kind = getattr(optim, rule)
    optimizer = kind.for_model(
        model, lr=0.01, adamw={"lr": 1e-3, "weight_decay": 0.1}, clip_grad_norm=1.0
    )
    groups = {tuple(group["param_names"]): group for group in optimizer.param_groups}
    assert {names: (g["rule"], g["lr"], g.get("layout")) for names, g in groups.items()} == {
        ("embed.weight", "head.weight"): ("AdamW", 1e-3, None),
        ("layer.w",): (rule, 0.01, "rows=3"),
        ("mix.weight",): (rule, 0.01, None),
        ("head.bias",): ("AdamW", 1e-3, None),
    }
    assert groups[("head.bias",)]["weight_decay"] == 0.0
    assert groups[("embed.weight", "head.weight")]["weight_decay"] == 0.1
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(7)[None]).square().mean().backward()
        optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_for_model_prints_reasons_and_keeps_them_in_copies() -> None:
    optimizer = optim.Muon.for_model(Model(Layer((2 * D, D), gate_and_up)), lr=0.02)
    table = str(optimizer)
    assert "Muon   rows=2  Layer: 2 blocks are used apart" in table
    assert str(pickle.loads(pickle.dumps(optimizer))) == table
    assert repr(optimizer).startswith("Mixed (")
    groups = [{"params": [nn.Parameter(torch.ones(2))], "rule": "AdamW"}]
    assert str(optim.Mixed(groups)) == repr(optim.Mixed(groups))


def test_steps_of_a_fused_weight_are_those_of_its_parts() -> None:
    torch.manual_seed(0)
    value = torch.randn(3 * D, D)
    fused = Model(Layer((3 * D, D), chunked_weight))
    fused.layer.w.data.copy_(value)  # pyright: ignore
    parts = [nn.Parameter(part.clone()) for part in value.chunk(3)]
    optimizer, separate = optim.Muon.for_model(fused, lr=0.1), optim.Muon(parts, lr=0.1)
    for _ in range(2):
        fused.layer.w.grad = torch.randn(3 * D, D)  # pyright: ignore
        for part, grad in zip(parts, fused.layer.w.grad.chunk(3), strict=True):  # pyright: ignore
            part.grad = grad.clone()
        optimizer.step()
        separate.step()
    assert torch.equal(fused.layer.w, torch.cat(parts))  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, r"Muon.for_model\(\) takes no 'heads'"),
        (
            {"adam": {"lr": 1e-3}},
            r"Muon.for_model\(\) takes no option 'adam'. Did you mean 'adamw'",
        ),
        ({"verbose": 2}, r"Muon.for_model\(\) takes no option 'verbose'.$"),
        ({"adamw": {"momentum": 0.9}}, "adamw takes no option 'momentum'"),
        ({"adamw": {"accumulate": 2}}, "adamw takes no option 'accumulate'"),
        ({"adamw": {"params": [nn.Parameter(torch.ones(2))]}}, "adamw takes no option 'params'"),
        ({"adamw": {1: 2}}, "The names of the options in adamw must be text, not 1"),
        ({"adamw": 3e-4}, "adamw must be a dictionary of options of AdamW"),
    ],
)
def test_for_model_raises_for_options_that_it_does_not_have(options: Any, message: str) -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match=message):
        optim.Muon.for_model(Model(nn.Identity()), **options)
