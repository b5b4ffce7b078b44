"""Whether attention runs fused is read off the operators, and why not is said."""

from functools import partial

import pytest
import torch

from suite.model.anatomy import anatomy
from suite.model.fused import unfused_attention
from tests.model.further_models import logits, make


def reasons(name: str, fused: bool = True) -> dict[str, str]:
    model = make(name)
    parts = anatomy(model)
    parts.set_fused_attention(fused)
    return unfused_attention(model, parts.every_block, partial(logits, model, name))


@pytest.mark.parametrize("name", ["gpt_neox", "phi3", "deit3", "mixtral", "albert"])
def test_fused_attention_is_seen(name: str) -> None:
    assert reasons(name) == {}
    assert set(reasons(name, fused=False).values()) == {"its code computes the scores itself"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt2", "with attention dropout, which is 0.1 here"),
        ("t5", "a mask that learns"),
        ("beit", "a mask that learns"),
        ("swin", "a mask that learns"),
    ],
)
def test_what_keeps_it_from_being_fused_is_named(name: str, reason: str) -> None:
    found = reasons(name)
    assert len(found) == len(anatomy(make(name)).every_block)
    assert all(reason in each for each in found.values())


def test_looking_leaves_no_trace() -> None:
    model = make("gpt2").eval()
    state = torch.get_rng_state()
    unfused_attention(model, anatomy(model).every_block, partial(logits, model, "gpt2"))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
