"""Counts against the papers' own formulas. ``pytest -s`` prints the comparison, term by term.

* Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2205.05198, section 4.1): a layer
  in fp16 with dropout saves sbh (34 + 5 a s / h) bytes; s tokens, b sequences, h features, a heads.
* Rajbhandari et al., ZeRO (1910.02054, section 3.1): 16 bytes a parameter under Adam, 2 + 2 + 12 in mixed precision.
* Dao et al., FlashAttention (2205.14135, theorem 1): O(N) memory beyond the operands and the output, where unfused
  attention keeps O(N^2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.measure.at_scale.full_size import Scale, counted
from suite.measure.at_scale.weightless import weightless
from suite.meters.activations import SavedActivations
from suite.meters.state import gradient_bytes, parameter_bytes, parameter_count, state_bytes
from suite.record.job import Setting

PUBLISHED: Mapping[str, float] = {
    "input of the query, key and value products": 2,
    "queries and keys": 4,
    "values": 2,
    "input of the attention's output product": 2,
    "mask of the dropout after it": 1,
    "inputs of two normalisations": 4,
    "input of the first MLP product": 2,
    "input of the GELU": 8,
    "input of the second MLP product": 8,
    "mask of the dropout after the MLP": 1,
}
"""Bytes of a layer over sbh, in fp16."""
PUBLISHED_SCORES: Mapping[str, float] = {"softmax": 2, "mask of its dropout": 1, "dropped softmax": 2}
"""Bytes of a layer over a s^2 b, in fp16."""
MASKS = {name for name in (*PUBLISHED, *PUBLISHED_SCORES) if name.startswith("mask")}


def test_the_formula_s_terms_are_the_paper_s() -> None:
    assert sum(PUBLISHED.values()) == 34 and sum(PUBLISHED_SCORES.values()) == 5


class MegatronLayer(nn.Module):
    """The paper's layer, in torch's operators: [s, b, h], one product for queries, keys and values, no causal mask."""

    def __init__(self, h: int, a: int) -> None:
        super().__init__()
        self.a, self.norms = a, nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: Tensor) -> Tensor:
        s, b, h = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(s, b * self.a, 3 * h // self.a).chunk(3, -1)
        scores = torch.bmm(q.transpose(0, 1), k.permute(1, 2, 0)) * (h // self.a) ** -0.5
        probabilities = F.dropout(scores.softmax(-1), 0.1)
        context = torch.bmm(probabilities, v.transpose(0, 1)).transpose(0, 1).reshape(s, b, h)
        x = x + F.dropout(self.out(context), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1)


@pytest.mark.parametrize(("s", "b", "h", "a"), [(2048, 4, 6144, 64), (2048, 1, 12288, 96), (512, 2, 768, 12)])
def test_a_layer_as_published_saves_the_published_bytes(s: int, b: int, h: int, a: int) -> None:
    """The first two are the paper's 22B and 175B models. To the byte but for the normalisations' means and deviations,
    two fp32 numbers a token each, which the paper neglects."""
    with weightless("cuda"):
        layers = nn.Sequential(*(MegatronLayer(h, a).half() for _ in range(2)))
        x = torch.empty(s, b, h, dtype=torch.float16, requires_grad=True)
        with SavedActivations(layers) as meter:
            layers(x).sum().backward()
    formula = 34 * s * b * h + 5 * a * s * s * b
    statistics = 2 * 2 * 4 * s * b
    print(f"\nlayer s={s} b={b} h={h} a={a}: published {formula:.4g} B, counted {meter.saved_bytes / 2:.4g} B")
    assert meter.saved_bytes == 2 * (formula + statistics)
    assert meter.saved_bytes == pytest.approx(2 * formula, rel=0.001)


SHAPES = {  # s, b, h, a, layers, outputs
    "gpt": (1024, 8, 768, 12, 12, 50257),
    "bert": (512, 32, 768, 12, 12, 30522),
    "vit": (197, 64, 768, 12, 12, 0),
}
FUSED = "fused attention keeps no scores"
NO_DROPOUT = "the baseline has no dropout, and without it the dropped softmax is the softmax"
GELU = "gelu_new is written out, and keeps four tensors of 4h where one would do"
DIFFERENT: Mapping[tuple[str, str], Mapping[str, tuple[float, str]]] = {
    ("gpt", "classic"): {"input of the GELU": (64, GELU)},
    ("bert", "classic"): {},
    ("vit", "classic"): {},
    ("gpt", "modern"): {"input of the GELU": (56, f"{GELU}; three in fp32, as autocast takes powers in fp32")},
    ("bert", "modern"): {
        "input of the query, key and value products": (6, "three linear layers, each with its own bf16 copy")
    },
    ("vit", "modern"): {},
}


def terms(model: str, recipe: str) -> tuple[dict[str, tuple[float, str]], dict[str, tuple[float, str]]]:
    """The layer's terms as the baseline runs it, each with why it is not the published one: over sbh and a s^2 b."""
    wide = recipe == "classic"

    def adapted(name: str, published: float, fused: bool) -> tuple[float, str]:
        if fused and not wide:
            return 0, FUSED
        if model != "bert" and (name in MASKS or name == "dropped softmax"):
            return 0, NO_DROPOUT
        if name in DIFFERENT[model, recipe]:
            return DIFFERENT[model, recipe][name]
        if wide and name not in MASKS:
            return 2 * published, "fp32"
        if name == "inputs of two normalisations":
            return 2 * published, "autocast normalises in fp32"
        return published, ""

    rows = {name: adapted(name, published, False) for name, published in PUBLISHED.items()}
    h, a = SHAPES[model][2:4]
    rows["statistics of two normalisations"] = (16 / h, "two fp32 numbers a token each, neglected in the paper")
    if not wide:
        rows["log-sum-exp of the fused attention"] = (4 * a / h, "an fp32 number for each row of scores")
    return rows, {name: adapted(name, published, True) for name, published in PUBLISHED_SCORES.items()}


def outside(model: str, recipe: str) -> float:
    """Bytes that are saved outside the layers, and for the cached bf16 copies of all weights under autocast."""
    s, b, h, _, layers, v = SHAPES[model]
    wide = recipe == "classic"
    activation, weights = (4, 0) if wide else (2, 2)
    if model == "vit":
        pictures, patches = b * 3 * 224**2, 3 * 16**2 * h
        # the patches' product, the last normalisation, whose whole output the class token keeps where nothing casts it
        normalised = 4 * s * b * h * (2 if wide else 1)
        return activation * pictures + normalised + weights * (12 * h * h * layers + patches)
    ends = 4 * s * b * v + activation * s * b * h  # fp32 log-probabilities; the input of the last product
    if model == "gpt":
        return ends + 4 * s * b * h + weights * (12 * h * h * layers + v * h)  # the last normalisation
    # the embeddings' normalisation and dropout, then the head's: a product, GELU and normalisation
    return ends + (4 + 1 + 2 * activation + 4) * s * b * h + weights * (12 * h * h * layers + h * h + v * h)


@pytest.mark.parametrize(("model", "recipe"), DIFFERENT)
def test_a_baseline_at_its_paper_s_size_saves_the_formula_s_bytes(model: str, recipe: Any) -> None:
    s, b, h, a, layers, _ = SHAPES[model]
    count = counted("baseline", Scale(Setting(baseline=model, size="base", recipe=recipe, device="cuda")))
    linear, quadratic = terms(model, recipe)
    layer = (
        s * b * h * (sum(each for each, _ in linear.values()) + sum(each for each, _ in quadratic.values()) * a * s / h)
    )
    expected = layers * layer + outside(model, recipe)
    saved = count.quantities()["saved_activation_bytes"]
    print(f"\n{model} {recipe}: formula {expected:.5g} B, counted {saved:.5g} B ({saved / expected - 1:+.2%})")
    for published, rows, unit in ((PUBLISHED, linear, "sbh"), (PUBLISHED_SCORES, quadratic, "a s^2 b")):
        for name, (here, why) in rows.items():
            print(f"  {name:48} {published.get(name, 0):5.3g} -> {here:5.3g} {unit:8} {why}")
    assert next(iter(count.batch.values()))[0] == b
    assert saved == pytest.approx(expected, rel=0.001)


class MasterAdam(torch.optim.Optimizer):
    """Adam on fp32 copies of fp16 parameters (Micikevicius et al., 1710.03740): the mixed precision that ZeRO means."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        for p in self.param_groups[0]["params"]:
            master = p.detach().float()
            self.state[p] = {"master": master, "first": torch.zeros_like(master), "second": torch.zeros_like(master)}


def test_mixed_precision_state_is_two_and_two_and_twelve() -> None:
    with weightless("cuda"):
        model = MegatronLayer(1024, 16).half()
        model(torch.empty(8, 1, 1024, dtype=torch.float16)).sum().backward()
        parts = [parameter_bytes(model), gradient_bytes(model), state_bytes(MasterAdam(model.parameters()))]
        size = parameter_count(model)
    assert [part / size for part in parts] == [2, 2, 12]


def test_fused_attention_needs_memory_linear_in_the_length_and_unfused_quadratic() -> None:
    """Beyond operands and output: an fp32 number a row, or s^2 probabilities with their dropout, as in the formula."""
    b, a, d = 2, 12, 64

    def beyond(s: int, fused: bool) -> int:
        with weightless("cuda"):
            q, k, v = (torch.empty(b, a, s, d, dtype=torch.float16, requires_grad=True) for _ in range(3))
            with SavedActivations() as meter:
                if fused:
                    output = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
                else:
                    output = F.dropout((q @ k.mT).softmax(-1), 0.1) @ v
                output.sum().backward()
            return meter.saved_bytes - 3 * q.nbytes - (output.nbytes if fused else 0)

    lengths = (512, 1024, 2048, 4096)
    seeds = 2 * 8 + 8  # of the generator
    rows = [(s, beyond(s, True) - seeds, beyond(s, False)) for s in lengths]
    for s, fused, unfused in rows:
        print(f"\nattention of {s} tokens: {fused:,} B fused, {unfused:,} B unfused", end="")
        assert fused == 4 * b * a * s
        assert unfused == 5 * b * a * s * s
