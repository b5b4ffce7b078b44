"""Techniques on models as users bring them, in every architecture that differs for one: they act at each of their
sites, or the run would end, and what grows ends as the plain model is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.model.further_models import further_run, make

TRAINS = {
    "adapter_houlsby:bottleneck=4": ("t5", "gptj", "mixtral", "pvt"),
    "bitfit": ("gpt_neox", "falcon", "beit", "swin", "albert"),
    "dota": ("gpt_neox", "t5", "deit3", "falcon"),
    "fixup": ("t5", "gemma2", "gptj", "bloom"),
    "flashattention": ("gpt2", "gpt_bigcode", "deit3"),
    "intrinsic_dim:dimension=64": ("albert", "t5", "swin", "beit", "cait"),
    "layerscale": ("mixtral",),
    "pld:theta=1": ("t5", "albert", "deit3"),
    "prefix_tuning:hidden=24,length=5": ("t5", "phi3", "mixtral"),
    "progressive_stacking:stages=0": ("swin", "albert"),
    "rezero": ("t5", "gemma2", "mixtral", "swinv2", "gptj"),
    "sanger": ("gpt_neox", "falcon_grouped", "deit3", "t5"),
    "skipinit": ("t5", "gemma2", "mixtral", "swinv2", "gptj"),
}
"""By stack: norms behind branches, three or parallel branches a block, one block for all depths, several stacks,
experts, biases of rows, fused and grouped heads, rotary positions, cross-attention, dropout, scales, pictures."""
GROWS = {
    "bert2bert": ("gpt_neox", "bloom", "gptj", "albert", "deit3", "dropping_vit", "gpt2"),
    "compound_grow": ("gpt_neox", "bloom", "phi3", "gptj", "falcon", "gpt_bigcode", "dropping_vit"),
    "progressive_stacking:fractions=0.2/0.4": ("pvt", "beit", "mixtral", "dropping_vit"),
}


def cases(table: dict[str, tuple[str, ...]]) -> Iterator[object]:
    for stack, models in table.items():
        yield from (pytest.param(stack, model, id=f"{stack.replace(':', '-')}-{model}") for model in models)


@pytest.mark.parametrize(("stack", "model"), cases(TRAINS))
def test_it_trains(stack: str, model: str) -> None:
    run = further_run(model, stack)
    assert all(math.isfinite(loss) for loss in run.train(2))
    assert run.attachment.proven


@pytest.mark.parametrize(("stack", "model"), cases(GROWS))
def test_it_grows_to_the_plain_models_architecture(stack: str, model: str) -> None:
    run, whole = further_run(model, stack), make(model)
    assert sum(p.numel() for p in run.model.parameters()) < sum(p.numel() for p in whole.parameters())
    run.train(6)
    assert {n: p.shape for n, p in run.model.named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    assert [str(module) for module in run.model.modules()] == [str(module) for module in whole.modules()]
