"""Low-rank adapters read back by peft, merged, and put in by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import leantrain
from leantrain import adapters, layers
from leantrain.applying import apply
from leantrain.wrappers import Wrapper
from tests.model.transformer_models import SIZES, TEXT, build

peft = pytest.importorskip("peft")


def classifier() -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(**TEXT, **SIZES, num_labels=3))


MODELS = {"gpt2": lambda: build("gpt2"), "llama": lambda: build("llama"), "classifier": classifier}
TOKENS = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(0))


def trained(name: str, stack: str) -> tuple[nn.Module, nn.Module]:
    """The model before, and adapted with updates that are not zero."""
    torch.manual_seed(0)
    base = MODELS[name]().eval()
    model = apply(copy.deepcopy(base), stack, learning_rate=1e-3).model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return base, model


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stack", ["lora:rank=4", "lora:rank=2,targets=query/output/mlp,alpha=5"])
def test_peft_reads_what_is_saved_and_a_merge_gives_the_same(name: str, stack: str, tmp_path: Path) -> None:
    base, model = trained(name, stack)
    expected = logits(model)
    assert (expected - logits(base)).abs().max() > 1e-3
    adapters.save(model, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(theirs), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(theirs.merge_and_unload()), expected, rtol=1e-4, atol=1e-5)
    merged = adapters.merge(model)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-5)
    assert merged.state_dict().keys() == base.state_dict().keys()


def test_a_fused_projection_has_one_adapter_of_both_ranks(tmp_path: Path) -> None:
    _, model = trained("gpt2", "lora:rank=4")
    folder = leantrain.adapters.save(model, tmp_path)
    saved = json.loads((folder / adapters.CONFIGURATION).read_text())
    assert (saved["r"], saved["lora_alpha"], saved["fan_in_fan_out"]) == (8, 32.0, True)


def test_what_has_no_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no layer of GPT2LMHeadModel has a low-rank update"):
        adapters.merge(build("gpt2"))
    with pytest.raises(ValueError, match="has a low-rank update"):
        adapters.save(build("gpt2"), tmp_path)


def test_layers_are_put_in_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 4)
    x, plain = torch.randn(3, 6), copy.deepcopy(linear)
    layer = layers.LowRankLinear(linear, rank=2)
    assert torch.equal(layer(x), plain(x)) and layer.scale == 2.0
    other = layers.LowRankLinear(nn.Linear(6, 4), rank=2)
    assert not torch.equal(next(iter(layer.a)), next(iter(other.a)))
    layer(x).square().sum().backward()
    assert {name for name, each in layer.named_parameters() if each.grad is not None} == {"a.0", "b.0"}
    with torch.no_grad():
        next(iter(layer.b)).normal_()
    a, b = next(iter(layer.a)), next(iter(layer.b))
    torch.testing.assert_close(layer(x), plain(x) + 2.0 * x @ a.T @ b.T)
    holder = nn.ModuleDict({"attention": layer})
    expected = layer(x)
    torch.testing.assert_close(adapters.merge(holder)["attention"](x), expected)
    scaled = layers.LayerScale(nn.Linear(6, 4))
    torch.testing.assert_close(scaled(x), 0.1 * scaled.linear(x))
    with pytest.raises(ValueError, match="rank is 1 or more"):
        layers.LowRankLinear(nn.Linear(2, 2), rank=0)


def test_every_exported_optimizer_needs_parameters_alone() -> None:
    from leantrain import optim

    made = [getattr(optim, name) for name in optim.__all__ if isinstance(getattr(optim, name), type)]
    wrapping = (Wrapper, optim.LAWA)  # of an optimizer, of a model
    plain = [each for each in made if not issubclass(each, wrapping)]
    assert len(plain) == 12
    for each in plain:
        assert each([nn.Parameter(torch.ones(2, 2))]).param_groups[0]["lr"] > 0
