"""torch's memory budget on blocks: equal weights to the bit, randomness saved, graphs for each form of arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from suite.loop.sites import Act
from suite.loop.technique import Unavailable
from suite.meters.activations import SavedActivations
from techniques.rematerialization.torch_autoac.technique import Partitioned, TorchAutoAC
from tests.model.further_models import further_run
from tests.runs import new_run


class Block(nn.Module):
    """Two products with what is cheap between them."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(rate)

    def forward(self, hidden: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        inner = self.dropout(nn.functional.gelu(self.first(hidden))) * scale
        return hidden + self.second(inner if mask is None else inner * mask)


def partitioned(block: Block, budget: float) -> Partitioned:
    return Partitioned(block, {"activation_memory_budget": budget}, Act())


def gradients(block: Block, function: object, *args: object) -> list[Tensor]:
    torch.manual_seed(3)
    return list(torch.autograd.grad(function(*args).sum(), list(block.parameters())))  # type: ignore[operator]


@pytest.mark.parametrize("budget", [0.3, 1.0])
def test_gradients_are_eager_autograds_to_the_bit_with_dropout(budget: float) -> None:
    block, hidden = Block(0.5), torch.randn(4, 8)
    mine = partitioned(block, budget)
    for _ in range(2):
        for a, b in zip(gradients(block, mine, hidden), gradients(block, block, hidden), strict=True):
            assert torch.equal(a, b)
    assert mine.act.count == 2 and len(mine.graphs) == 1


def test_dropout_that_would_be_drawn_anew_is_refused() -> None:
    with pytest.raises(ValueError, match="drawn anew"):
        partitioned(Block(0.5), 0.0)(torch.randn(4, 8))


def test_other_shapes_constants_rates_and_arguments_are_traced_by_themselves() -> None:
    block = Block()
    mine = partitioned(block, 0.5)
    calls = [
        (torch.randn(4, 8),),
        (torch.randn(6, 8),),
        (torch.randn(4, 8), 2.0),
        (torch.randn(4, 8), 1.0, torch.ones(32)),
    ]
    for args in calls:
        assert torch.equal(mine(*args), block(*args))
    block.dropout.p = 0.5
    mine(*calls[0])
    block.eval()
    assert torch.equal(mine(*calls[0]), block(*calls[0]))
    assert len(mine.graphs) == len(calls) + 2
    with torch.no_grad():
        assert not mine(*calls[0]).requires_grad


def test_each_autocast_mode_is_traced_by_itself_and_is_afterwards_as_it_was() -> None:
    block, hidden = Block(), torch.randn(4, 8)
    mine = partitioned(block, 0.5)
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            expected, output = block(hidden), mine(hidden)
            assert torch.is_autocast_enabled("cpu") == (dtype is not None)
            assert torch.get_autocast_dtype("cpu") == (dtype or torch.bfloat16)
        assert output.dtype == expected.dtype and torch.equal(output, expected)
        ours, theirs = (
            torch.autograd.grad(each.float().sum(), list(block.parameters())) for each in (output, expected)
        )
        assert all(map(torch.equal, ours, theirs))
    assert len(mine.graphs) == 3


def test_in_bfloat16_the_gradient_of_dropout_has_one_rounding_less() -> None:
    """Of 1 / (1 - p), which eager dropout rounds to bfloat16: 1.109375 for p = 0.1."""
    block, hidden = nn.Dropout(0.1), torch.ones(512, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.full((512,), 1.5, dtype=torch.bfloat16)
    kept: list[list[float]] = []
    for function in (Partitioned(block, {"activation_memory_budget": 1.0}, Act()), block):
        torch.manual_seed(3)
        (gradient,) = torch.autograd.grad(function(hidden), [hidden], upstream)
        kept.append(gradient.unique().tolist())
    assert kept == [[0.0, torch.tensor(1.5 / 0.9).bfloat16().item()], [0.0, (upstream[0] * 1.109375).item()]]


def saved_bytes(block: Block, function: object, hidden: Tensor) -> int:
    function(hidden)  # type: ignore[operator]
    with SavedActivations(block) as saved:
        function(hidden).sum().backward()  # type: ignore[operator]
    return saved.saved_bytes


def test_a_smaller_budget_saves_fewer_bytes() -> None:
    block, hidden = Block(), torch.randn(64, 8)
    each = [saved_bytes(block, partitioned(block, budget), hidden) for budget in (0.0, 0.5, 1.0)]
    assert hidden.nbytes <= each[0] <= each[1] <= each[2] <= saved_bytes(block, block, hidden)
    assert each[0] < each[2]


def test_another_solver_trains_to_the_same_weights() -> None:
    plain = new_run("gpt", "baseline", size="pico", recipe="modern", steps=2)
    losses = plain.train(2)
    run = new_run("gpt", "torch_autoac:solver=ilp", size="pico", recipe="modern", steps=2)
    assert run.train(2) == losses
    assert all(a.equal(b) for a, b in zip(plain.model.parameters(), run.model.parameters(), strict=True))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Unavailable, match="partitions the whole model"):
        new_run("gpt", "torch_autoac", size="pico", recipe="compiled", steps=2)


def first_step(technique: str | TorchAutoAC) -> tuple[list[float], dict[str, Tensor]]:
    """Loss and gradients of T5."""
    run, kept = further_run("t5", technique), {}
    for name, parameter in run.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda each, name=name: kept.update({name: each.grad.clone()}))
    return run.train(1), kept


def test_another_family_learns_the_same_but_for_the_order_of_a_sum() -> None:
    """Every block of the decoder reads the encoder's output as keys and as values: a block's own graph adds up both of
    its gradients before they meet the other blocks'. What lies behind that sum has other roundings."""
    (loss, mine), (expected, eager) = first_step(TorchAutoAC()), first_step("baseline")
    assert loss == expected and mine.keys() == eager.keys()
    exact = {name for name in eager if name.startswith("decoder.")}
    assert exact and all(torch.equal(mine[name], eager[name]) for name in exact)
    for name in eager.keys() - exact:
        torch.testing.assert_close(mine[name], eager[name], rtol=0, atol=1e-6 * eager[name].abs().max().item())
