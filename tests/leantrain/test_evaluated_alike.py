"""A replaced layer takes part in evaluation as it does in training, where the model's own code has a faster way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.applying import Applied, apply
from leantrain.layers import LayerScale, LowRankLinear
from suite.loop.sites import NotAttached

TOKENS = torch.randint(1, 64, (8, 12), generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(8)


class Encoder(nn.Module):
    """torch's own encoder, which reads its layers' weights in evaluation and calls none of them."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.head = nn.Linear(32, 8)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.encoder(self.table(tokens), src_key_padding_mask=padding)
        pooled: Tensor = self.head(hidden[:, 0])
        return pooled


def moved(stack: str, model: nn.Module) -> Applied:
    applied = apply(model, stack, batch=(TOKENS, CLASSES), learning_rate=1e-2, steps=20)
    for _ in range(3):
        if applied.context.run.overriding("update"):
            applied.context.update((TOKENS, CLASSES))
            continue
        with applied.context.step((TOKENS, CLASSES)):
            F.cross_entropy(applied.model(TOKENS), CLASSES).backward()
            applied.optimizer.step()
            applied.optimizer.zero_grad()
    return applied


TRAINED = ["lora:targets=mlp", "alpaca_lora:targets=mlp,dropout=0", "arora_depth", "bitfit", "rigl:interval=2"]
REFUSED = ["rezero", "skipinit", "layerscale", "adapter_houlsby", "int8_mixed", "fp8_hybrid", "outerspace"]


@pytest.mark.parametrize("stack", TRAINED)
def test_torchs_encoder_evaluates_what_was_trained(stack: str) -> None:
    model = moved(stack, Encoder()).model
    trained = model.train()(TOKENS)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(TOKENS), trained, rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("stack", REFUSED)
def test_what_needs_a_layer_that_torch_never_calls_is_refused(stack: str) -> None:
    with pytest.raises((ValueError, NotAttached), match=r"out_proj|residual branches"):
        moved(stack, Encoder())


def test_padding_is_no_way_round() -> None:
    """With it torch makes rows of several lengths of the batch, where nothing stops it."""
    padding = torch.zeros(8, 12, dtype=torch.bool)
    padding[::2, 7:] = True
    model = moved("lora:targets=mlp", Encoder(norm_first=False)).model
    trained = model.train()(TOKENS, padding)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(TOKENS, padding), trained, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrapper", [lambda linear: LayerScale(linear, 0.5), lambda linear: LowRankLinear(linear)])
def test_layers_put_in_by_hand_are_called_too(wrapper: Any) -> None:
    model = Encoder()
    for layer in model.encoder.layers:
        layer.linear2 = wrapper(layer.linear2)
        for parameter in layer.linear2.parameters():
            nn.init.normal_(parameter)
    trained = model.train()(TOKENS)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(TOKENS), trained, rtol=1e-4, atol=1e-5)


class ReadsInEvaluation(Encoder):
    """With a fast path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block() for _ in range(2))  # type: ignore[assignment]

    def forward(self, tokens: Tensor, _: Tensor | None = None) -> Tensor:
        hidden = self.table(tokens)
        for block in self.encoder:  # type: ignore[attr-defined]
            hidden = block(hidden)
        pooled: Tensor = self.head(hidden[:, 0])
        return pooled


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(32, 32)
        self.fc = nn.Linear(32, 32)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(hidden)
        if self.training:
            return hidden + self.fc(hidden)
        return hidden + F.linear(hidden, self.fc.weight, self.fc.bias)


def test_what_a_model_goes_round_in_evaluation_is_refused() -> None:
    model = ReadsInEvaluation()
    shown = repr(model)
    with pytest.raises(ValueError, match=r"calls encoder\.0\.fc in training alone, .* let it call the layer in both"):
        apply(model, "lora:targets=mlp", batch=(TOKENS, CLASSES))
    assert repr(model) == shown
