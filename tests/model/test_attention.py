"""A swapped attention function computes every block's attention, equals the model's own, and leaves when told to."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.model.anatomy import anatomy
from suite.model.attention import NotSwappable, eager
from tests.leantrain.families import FAMILIES
from tests.model.transformer_models import BUILDERS, SWAPPABLE, build, gradients, loss


class Recording:
    """Eager attention that notes how it was called."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
        self.calls.append({"query": query.shape, "key": key.shape, **settings})
        return eager(query, key, value, **settings)


def torch_sdpa(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Calls what it stands in for: a swap must not recurse."""
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, causal, scale=scale)


def broken(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    return value.roll(1, -1) if value.shape == query.shape else query.roll(1, -1)


def assert_equal_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Within 1e-6 of each gradient's largest entry (or of 1): the sums run over all tokens, in another order."""
    assert actual.keys() == expected.keys()
    for key, gradient in expected.items():
        difference = (actual[key] - gradient).abs().max()
        assert difference <= 1e-6 * gradient.abs().max().clamp(min=1), f"{key} differs by {difference}"


def undropped(name: str) -> nn.Module:
    return build(name).eval()  # kernels draw dropout noise differently


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("name", SWAPPABLE)
def test_eager_fused_and_swapped_agree(name: str, padding: bool) -> None:
    model = undropped(name)
    found = anatomy(model)
    results = []
    for on in (False, True):
        found.set_fused_attention(on)
        results.append(gradients(model, name, padding=padding))
    recording = Recording()
    with found.attention(recording):
        results.append(gradients(model, name, padding=padding))

    expected_loss, expected = results[0]
    for value, gradient in results[1:]:
        torch.testing.assert_close(value, expected_loss, atol=1e-6, rtol=1e-6)
        assert_equal_gradients(gradient, expected)
    attentions = len(found.every_block) + (found.stacks[1].depth if name == "t5" else 0)  # cross-attention
    assert len(recording.calls) == attentions
    for call in recording.calls:
        assert call["key"][1] == call["query"][1] == 4  # grouped keys come repeated
        assert call["mask"] is None or not call["causal"]
        assert call["dropout_p"] == 0


@pytest.mark.parametrize("name", SWAPPABLE)
def test_swapping_in_the_same_function_changes_no_bit(name: str) -> None:
    """With dropout on: the function gets the model's own probabilities, masks and scales."""
    model = build(name)
    found = anatomy(model)
    found.set_fused_attention(True)
    expected_loss, expected = gradients(model, name, padding=False)
    with found.attention(torch_sdpa):
        value, actual = gradients(model, name, padding=False)
    assert torch.equal(value, expected_loss)
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", SWAPPABLE)
def test_a_broken_function_shows(name: str) -> None:
    model = undropped(name)
    before = loss(model, name)
    with anatomy(model).attention(broken):
        assert not torch.allclose(loss(model, name), before)
    assert torch.equal(loss(model, name), before)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_causal_models_ask_for_causality_without_a_mask(name: str) -> None:
    model, recording = build(name), Recording()
    with anatomy(model).attention(recording):
        loss(model, name, padding=False)
        assert all(call["causal"] and call["mask"] is None for call in recording.calls)
        assert all(call["dropout_p"] == pytest.approx(0.1) for call in recording.calls)
        recording.calls.clear()
        loss(model, name, padding=True)
        assert all(call["mask"].dtype == torch.bool for call in recording.calls)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_swaps_nest_last_and_come_back(name: str) -> None:
    model = undropped(name)
    found = anatomy(model)
    inner, outer, forever = Recording(), Recording(), Recording()
    found.attention_sites.swap(forever)
    with found.attention(outer):
        with found.attention(inner):
            loss(model, name)
        with pytest.raises(ZeroDivisionError), found.attention(inner):
            _ = 1 / 0
        loss(model, name)
    loss(model, name)
    loss(copy.deepcopy(model), name)  # as averaged weights are evaluated
    assert [len(each.calls) for each in (inner, outer, forever)] == [4, 4, 8]
    found.set_fused_attention(True)
    loss(model, name)
    assert len(forever.calls) == 8


def test_another_model_of_the_class_is_untouched() -> None:
    for name in ("bert", "vit"):
        swapped, other, recording = build(name), build(name), Recording()
        with anatomy(swapped).attention(recording):
            loss(other, name)
        assert not recording.calls


def fused_kernels(model: nn.Module, name: str) -> int:
    """How many fused attention operators one forward calls."""
    with torch.profiler.profile() as profile:
        loss(model, name, padding=False)
    return sum(event.name == "aten::scaled_dot_product_attention" for event in profile.events())


@pytest.mark.parametrize("name", SWAPPABLE)
def test_fused_means_fused(name: str) -> None:
    model = undropped(name)
    found = anatomy(model)
    found.set_fused_attention(True)
    assert fused_kernels(model, name) >= len(found.every_block)
    found.set_fused_attention(False)
    assert fused_kernels(model, name) == 0


class OwnAttention(nn.Module):
    """Calls scaled_dot_product_attention by its full name, without a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(output.transpose(1, 2).flatten(-2))


class OwnBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = OwnAttention(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x + self.attn(x))


def test_a_users_own_model_can_be_swapped_and_made_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OwnBlock(), OwnBlock())
    found, x, recording = anatomy(model), torch.randn(2, 5, 8), Recording()
    fused = model(x)
    with found.attention(recording):
        torch.testing.assert_close(model(x), fused)
    assert [call["causal"] for call in recording.calls] == [True, True]
    found.set_fused_attention(False)
    torch.testing.assert_close(model(x), fused)
    found.set_fused_attention(True)
    assert torch.equal(model(x), fused)


def test_attention_with_its_own_code_is_refused() -> None:
    found = anatomy(build("deberta"))
    found.set_fused_attention(False)  # it is eager already
    with pytest.raises(NotSwappable, match="classic"):
        found.set_fused_attention(True)
    with pytest.raises(NotSwappable, match="DebertaV2ForMaskedLM computes attention with its own code"):
        found.attention_sites.swap(eager)


def test_terms_that_no_other_function_has_are_refused_and_never_left_out() -> None:
    for family, term in (("gpt_oss", "sinks beside its keys"), ("gemma2", "soft cap")):
        model, batch = FAMILIES[family]()
        found = anatomy(model)
        found.set_fused_attention(True)
        with pytest.raises(ValueError, match=r"sinks beside its keys|softcap"):
            model(**batch)
        found.attention_sites.swap(eager)
        with pytest.raises(NotSwappable, match=term):
            model(**batch)
    model, batch = FAMILIES["speech_to_text"]()  # whose library says that it has no fused attention, and it may
    own = model.eval()(**batch).loss
    anatomy(model).set_fused_attention(True)
    torch.testing.assert_close(model(**batch).loss, own)


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_compiled_models_use_the_swapped_function(name: str) -> None:
    model = undropped(name)
    anatomy(model).set_blocks([anatomy(model).blocks[0].module])
    expected = loss(model, name)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(loss(compiled, name), expected)
    with anatomy(model).attention(broken):
        swapped = loss(model, name)
        torch.testing.assert_close(loss(compiled, name), swapped)
    assert not torch.allclose(swapped, expected)
    torch.testing.assert_close(loss(compiled, name), expected)


def test_eager_survives_queries_that_may_see_nothing() -> None:
    query = torch.randn(1, 1, 2, 4)
    mask = torch.tensor([[True, False], [False, False]])
    output = eager(query, query, query, mask=mask, causal=False, scale=1.0, dropout_p=0.0)
    assert output.isfinite().all()


def test_every_family_is_covered() -> None:
    assert [name for name in BUILDERS if not anatomy(build(name)).attention_sites.complete] == ["deberta"]
