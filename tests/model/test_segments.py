"""Segments under a wrapper give the plain model's results to the bit, with the wrapper's effect."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from suite.model.anatomy import anatomy
from suite.model.segments import SegmentError, joinable
from tests.model.transformer_models import BUILDERS, build, gradients, loss

rematerialised = partial(checkpoint, use_reentrant=False, preserve_rng_state=True)
WITHOUT_SHARED_BIAS = [name for name in BUILDERS if name != "t5"]


class Counting:
    """A wrapper that counts its calls and rematerialises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
        self.calls += 1
        return rematerialised(function, hidden)


def runs(model: nn.Module) -> list[int]:
    """Counts, from now on, how often each block's attention output layer really runs."""
    counts = [0] * anatomy(model).depth
    for block in anatomy(model).blocks:
        assert block.attention_output is not None

        def count(*_: Any, index: int = block.index) -> None:
            counts[index] += 1

        block.attention_output.module.register_forward_hook(count)
    return counts


@pytest.mark.parametrize("name", WITHOUT_SHARED_BIAS)
@pytest.mark.parametrize("segments", [[(0, 4)], [(1, 2), (2, 4)]], ids=str)
def test_gradients_are_the_plain_models(name: str, segments: list[tuple[int, int]]) -> None:
    plain = build(name)
    expected_loss, expected = gradients(plain, name)
    model = build(name)
    counts, wrapper = runs(model), Counting()
    with anatomy(model).segmented(segments, wrapper):
        actual_loss, actual = gradients(model, name)

    assert torch.equal(actual_loss, expected_loss)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], expected[key]) for key in expected)
    assert wrapper.calls == len(segments)
    assert counts == [2 if any(start <= block < end for start, end in segments) else 1 for block in range(4)]


def test_a_segment_keeps_only_its_input() -> None:
    """One segment over four blocks saves fewer bytes for backward than four segments of one block's inside would."""

    def saved_bytes(segments: list[tuple[int, int]]) -> int:
        model = build("vit")
        saved = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
            return tensor

        with anatomy(model).segmented(segments, rematerialised):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                value = loss(model, "vit")
            value.backward()
        return saved

    hidden_bytes = 2 * 17 * 32 * 4  # [batch, tokens, width] float32
    plain, each, whole = saved_bytes([]), saved_bytes([(i, i + 1) for i in range(4)]), saved_bytes([(0, 4)])
    assert each - whole in (0, 3 * hidden_bytes)
    assert whole < plain - 4 * hidden_bytes


def test_the_model_is_itself_again_afterwards() -> None:
    model = build("bert")
    found = anatomy(model)
    blocks = [block.module for block in found.blocks]
    with found.segmented([(0, 4)], rematerialised), found.segmented([(0, 1)], rematerialised, found.main):
        assert all("forward" in vars(block) for block in blocks)
    assert not any("forward" in vars(block) for block in blocks)
    with pytest.raises(ZeroDivisionError), found.segmented([(0, 4)], rematerialised):
        _ = 1 / 0
    assert not any("forward" in vars(block) for block in blocks)


def test_both_stacks_at_once() -> None:
    plain = gradients(build("mae"), "mae")
    model = build("mae")
    encoder, decoder = anatomy(model).stacks
    wrapper = Counting()
    with (
        anatomy(model).segmented([(0, 4)], wrapper, encoder),
        anatomy(model).segmented([(0, 2)], wrapper, decoder),
    ):
        value, actual = gradients(model, "mae")
    assert wrapper.calls == 2
    assert torch.equal(value, plain[0])
    assert all(torch.equal(actual[key], plain[1][key]) for key in actual)


def test_blocks_that_hand_more_on_cannot_share_a_segment() -> None:
    model = build("t5")
    expected = gradients(model, "t5")
    with (
        pytest.raises(SegmentError, match="start a new segment at this block"),
        anatomy(model).segmented([(0, 2)], rematerialised),
    ):
        loss(model, "t5")
    with anatomy(model).segmented([(0, 1), (1, 4)], rematerialised):
        value, actual = gradients(model, "t5")
    assert torch.equal(value, expected[0])
    assert all(torch.equal(actual[key], expected[1][key]) for key in actual)


@pytest.mark.parametrize("segments", [[(0, 5)], [(0, 2), (1, 3)], [(2, 2)], [(-1, 2)], [(3, 1)]], ids=str)
def test_segments_that_do_not_fit_are_refused(segments: list[tuple[int, int]]) -> None:
    with pytest.raises(SegmentError, match="give pairs"), anatomy(build("vit")).segmented(segments, rematerialised):
        pass


def test_caches_stay_out() -> None:
    """A model that makes a key-value cache in training, as Hugging Face's do by default, is not cached twice."""
    model = build("gpt2")
    expected = gradients(model, "gpt2")
    model.config.use_cache = True
    with anatomy(model).segmented([(1, 4)], rematerialised):
        value, actual = gradients(model, "gpt2")
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(actual, expected[1])


def test_a_filled_cache_is_refused() -> None:
    model = build("gpt2").eval()
    tokens = torch.arange(3, 9)[None]
    cache = model(tokens, use_cache=True).past_key_values
    with pytest.raises(SegmentError, match="past_key_values"), anatomy(model).segmented([(0, 4)], rematerialised):
        model(tokens, past_key_values=cache)


def test_compiled_models_run_segments() -> None:
    model = build("gpt2").eval()
    anatomy(model).set_blocks([block.module for block in anatomy(model).blocks[:2]])
    expected = loss(model, "gpt2")
    with anatomy(model).segmented([(0, 1), (1, 2)], rematerialised):
        actual = loss(torch.compile(model, backend="eager"), "gpt2")
    torch.testing.assert_close(actual, expected)


class Normalised(nn.Module):
    """A block with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.attn(x)))


@pytest.mark.parametrize("early_stop", [True, False])
def test_running_statistics_count_a_step_once(early_stop: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*(Normalised() for _ in range(3)))
    model = copy.deepcopy(plain)
    for step in range(1, 3):
        x = torch.randn(5, 4)
        plain(x).sum().backward()
        with set_checkpoint_early_stop(early_stop), anatomy(model).segmented([(0, 2)], rematerialised):
            model(x).sum().backward()
        assert model[0].norm.num_batches_tracked == step
        for (name, mine), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
            assert torch.equal(mine, other), name
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad, other.grad)


def test_what_runs_again_sees_the_statistics_of_the_first_run() -> None:
    """Spectral normalisation's output depends on the vector that it updates."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(Normalised() for _ in range(2)))
    for block in plain:
        nn.utils.parametrizations.spectral_norm(block.mlp)
    model = copy.deepcopy(plain)
    x = torch.randn(5, 4)
    plain(x).sum().backward()
    with anatomy(model).segmented([(0, 2)], rematerialised):
        model(x).sum().backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)
    for mine, other in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("name", "ranges"), [("t5", [(0, 1), (1, 4)]), ("gpt2", [(0, 4)]), ("vit", [(0, 4)])])
def test_blocks_that_are_called_alike_can_be_joined(name: str, ranges: list[tuple[int, int]]) -> None:
    model = build(name)
    assert joinable(model, anatomy(model).stacks[0].blocks, partial(loss, model, name)) == ranges


def test_hidden_states_that_change_between_blocks_are_not_skipped() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Normalised() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[1](2 * self.layers[0](x))

    model = Doubling()
    with (
        pytest.raises(SegmentError, match="changes the hidden states before block 1"),
        anatomy(model).segmented([(0, 2)], rematerialised),
    ):
        model(torch.randn(5, 4))
