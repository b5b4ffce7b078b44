"""What blocks save, packed: which tensors are, once each, under which names; views and casts of weights never."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.model.anatomy import Part
from techniques.activation_compression.shared import saved_tensors
from techniques.activation_compression.shared.saved_tensors import Place, Saver, blocks, head_wise, packing
from tests.runs import Planted, new_run


@dataclass(frozen=True, eq=False)
class Whole:
    """Nothing is lost."""

    tensor: Tensor

    def numbers(self) -> Tensor:
        return self.tensor.flatten()


def passed(run: Run, seen: list[tuple[Tensor, Place]] | None = None) -> list[Tensor]:
    """One pass's gradients; with ``seen``, through packed tensors, which it gets."""
    batch, _ = run.data.batch(0, 0, 4)
    run.model.zero_grad()
    if seen is None:
        run.forward(batch).backward()
    else:

        def pack(tensor: Tensor, place: Place) -> Whole:
            seen.append((tensor, place))
            return Whole(tensor.clone())

        with packing(run, blocks(run.anatomy), pack):
            loss = run.forward(batch)
        loss.backward()
    return [each.grad.clone() for each in run.model.parameters() if each.grad is not None]


@pytest.mark.parametrize("recipe", ["classic", "modern"])
@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_a_codec_that_loses_nothing_gives_the_plain_gradients_to_the_bit(baseline: str, recipe: str) -> None:
    run = new_run(baseline, Planted(), size="pico", recipe=recipe, steps=4)
    plain, seen = passed(run), []
    for one, other in zip(passed(run, seen), plain, strict=True):
        assert torch.equal(one, other)
    names = [place.name for _, place in seen]
    assert len(names) == len(set(names)) and {place.batch for _, place in seen} == {4}
    parameters = [each.detach() for each in run.model.parameters() if each.ndim >= 2]
    for tensor, _ in seen:
        assert tensor.ndim >= 2 and not tensor.requires_grad
        for each in parameters:
            for same in (each, each.mT):
                assert tensor.shape != same.shape or not torch.equal(tensor.float(), same.to(tensor.dtype).float())


@pytest.mark.parametrize("baseline", ["gpt", "vit"])
def test_names_are_the_same_in_every_step(baseline: str) -> None:
    run = new_run(baseline, Planted(), size="pico", recipe="classic", steps=4)
    steps: list[list[str]] = []
    for _ in range(2):
        seen: list[tuple[Tensor, Place]] = []
        passed(run, seen)
        steps.append([place.name for _, place in seen])
        run.train(1)
    assert steps[0] == steps[1]


def test_fused_attention_keeps_its_log_sum_exp() -> None:
    run = new_run("vit", Planted(), size="pico", recipe="modern", steps=4)
    seen: list[tuple[Tensor, Place]] = []
    passed(run, seen)
    heads = run.anatomy.heads
    assert heads is not None
    assert not [tensor for tensor, _ in seen if tensor.ndim == 3 and tensor.shape[1] == heads]


def kept_of(function: Any) -> list[Any]:
    """What stands in place of each saved tensor of a function that runs as a block."""
    kept: list[Any] = []
    original = saved_tensors.saved_tensors_hooks
    try:
        saved_tensors.saved_tensors_hooks = lambda pack, unpack: saved_tensors_hooks(  # type: ignore[attr-defined]
            lambda tensor: kept.append(pack(tensor)) or kept[-1],  # type: ignore[func-returns-value]
            unpack,
        )
        saved_tensors.packed_forward(
            Saver(Part("block", nn.Identity()), 2),
            function,
            {},
            lambda tensor, place: Whole(tensor),
            saved_tensors.ignored,
            nullcontext,
            torch.randn(3, 5, 4, requires_grad=True) * 1.0,
        )
    finally:
        saved_tensors.saved_tensors_hooks = original  # type: ignore[attr-defined]
    return kept


def test_a_tensor_that_is_saved_again_and_again_is_packed_once() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    kept = kept_of(lambda x: F.gelu(x) + F.linear(x, weight) + F.linear(x, 2 * weight) + x.tanh().square())
    packed = [each.packed for each in kept if not isinstance(each, Tensor)]
    activations = [each for each in packed if each.tensor.numel() == 60]
    assert len(activations) == 5 and len({id(each) for each in activations}) == 2  # x thrice, its tanh twice


@pytest.mark.parametrize("of", [lambda w: w, lambda w: w.t(), lambda w: w[:, :4], lambda w: w.bfloat16().t()])
def test_views_and_casts_of_weights_stay(of: Any) -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    kept = kept_of(lambda x: x.to(of(weight).dtype).reshape(15, 4) @ of(weight))
    assert [each.shape for each in kept if isinstance(each, Tensor)] == [(4, 4)]
    assert [each.packed.tensor.shape for each in kept if not isinstance(each, Tensor)] == [(15, 4)]


def test_an_address_that_is_taken_again_is_another_tensor() -> None:
    """The first tensor dies within the forward, and the second may lie where it was."""

    def function(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x.exp() * 0.5).sin()
        return x

    kept = kept_of(function)
    assert len({id(each.packed) for each in kept}) == 40


def test_a_tensor_that_changes_is_packed_again() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1.0
        z = y.square()
        y.add_(1.0)
        return z.sum() + y.square().sum()

    assert len({id(each.packed) for each in kept_of(function)}) == 2


@given(st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.integers(1, 3))
def test_groups_are_heads(batch: int, heads: int, tokens: int, inner: int) -> None:
    """Each value carries its head's number; every group has one number."""
    number = torch.arange(heads)
    place = Place("block", 0, batch, heads)
    shapes = [
        number.view(1, -1, 1, 1).expand(batch, heads, tokens, inner),
        number.view(1, -1, 1, 1).expand(batch, heads, tokens, inner).reshape(batch * heads, tokens, inner),
        number.view(1, 1, -1, 1).expand(batch, tokens, heads, inner).reshape(batch, tokens, heads * inner),
        number.view(1, -1, 1).expand(batch * tokens, heads, inner).reshape(batch * tokens, heads * inner),
    ]
    for x in shapes:
        grouped = x.reshape(head_wise(x.shape, place))
        assert grouped.shape[1] == heads
        for head in range(heads):
            assert bool((grouped[:, head] == head).all())


@pytest.mark.parametrize("stack", ["actnn+ckpt_chen_sqrt", "ckpt_chen_sqrt+gact"])
def test_beside_recomputation_only_the_rest_is_packed(stack: str) -> None:
    """Segments keep exact inputs; their insides are not saved at all."""
    saved = {}
    for each in ("ckpt_chen_sqrt", stack):
        run = new_run("gpt", each, size="nano", recipe="classic", steps=4)
        run.train(2)
        saved[each] = run.count_step().saved_activation_bytes
    assert saved[stack] < 0.6 * saved["ckpt_chen_sqrt"]


def test_what_no_head_divides_is_one_group() -> None:
    assert head_wise(torch.Size([3, 5, 7]), Place("block", 0, 3, 4)) == (1, 1, 105)


def test_a_compiled_model_is_refused() -> None:
    run = new_run("vit", Planted(), size="pico", recipe="classic", steps=4)
    run.recipe = run.recipe.__class__(**{**vars(run.recipe), "compile": True})
    with pytest.raises(Unavailable, match="classic or modern"), packing(run, [], lambda tensor, place: Whole(tensor)):
        pass
