"""The base of our optimizers: one step for all of them, and launch tables that do not outlive their tensors."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.kernels.optimizer import GroupedOptimizer, launchable


class HeavyBall(GroupedOptimizer):
    """Momentum; matrices apart from vectors. ``updated`` has the shapes of each list, in order."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.updated: list[list[tuple[int, ...]]] = []

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        return parameter.ndim > 1

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        if hasattr(self, "updated"):  # copies have none
            self.updated.append([tuple(parameter.shape) for parameter in parameters])
        self.tables(parameters, object)
        for value, gradient, momentum in zip(values, gradients, self.buffers(parameters, "momentum")):
            momentum.mul_(0.5).add_(gradient)
            value.sub_(momentum, alpha=group["lr"])


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in ((3,), (2, 2), (4,))]


def with_gradients(those: list[nn.Parameter], value: float = 1.0) -> list[nn.Parameter]:
    for each in those:
        each.grad = torch.full_like(each, value)
    return those


def test_the_closure_is_called_with_gradients_enabled_and_its_loss_is_returned() -> None:
    (parameter,) = those = [nn.Parameter(torch.full((2,), 3.0))]
    optimizer = HeavyBall(those)
    enabled = []

    def closure() -> Tensor:
        enabled.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
        assert not torch.is_grad_enabled()
    assert enabled == [True]
    assert loss == 18
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 3.0 - 0.1 * 6))
    assert parameter.requires_grad
    assert optimizer.step() is None


def test_parameters_without_gradients_are_left_alone() -> None:
    those = with_gradients(parameters())
    those[1].grad = None
    optimizer = HeavyBall([{"params": those}, {"params": [nn.Parameter(torch.ones(5))]}])
    optimizer.step()
    assert optimizer.updated == [[(3,), (4,)]]
    assert torch.equal(those[1], torch.ones(2, 2))
    assert those[1] not in optimizer.state


def test_groups_are_updated_in_order_each_in_lists_that_agree() -> None:
    those = with_gradients([*parameters(), *parameters()])
    optimizer = HeavyBall([{"params": those[:3]}, {"params": those[3:], "lr": 0.0}])
    optimizer.step()
    assert optimizer.updated == [[(3,), (4,)], [(2, 2)]] * 2
    assert all(torch.equal(each, torch.full_like(each, 0.9)) for each in those[:3])
    assert all(torch.equal(each, torch.ones_like(each)) for each in those[3:])


def test_a_list_keeps_its_tables_from_step_to_step() -> None:
    those = with_gradients(parameters())
    optimizer = HeavyBall(those)
    optimizer.step()
    tables = [optimizer.tables(those[first:], object) for first in (0, 1)]
    optimizer.step()
    assert all(optimizer.tables(those[first:], object) is tables[first] for first in (0, 1))
    assert tables[0] is not tables[1]


@pytest.mark.parametrize("way", ["load_state_dict", "deepcopy", "pickle"])
def test_tables_are_forgotten_and_the_state_goes_on(way: str) -> None:
    those = with_gradients(parameters())
    optimizer = HeavyBall(those)
    optimizer.step()
    if way == "load_state_dict":
        copies = copy.deepcopy(those)
        other = HeavyBall(copies)
        other.tables(copies, lambda: "old")
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    elif way == "deepcopy":
        other, copies = copy.deepcopy((optimizer, those))
    else:
        other, copies = pickle.loads(pickle.dumps((optimizer, those)))  # noqa: S301 (our own)
    assert other.tables(copies, lambda: "new") == "new"
    for each in (optimizer, other):
        with_gradients(each.param_groups[0]["params"], -2.0)
        each.step()
    assert all(torch.equal(mine, its) for mine, its in zip(those, copies))


def test_a_state_dict_makes_the_round_trip() -> None:
    those = with_gradients(parameters())
    optimizer = HeavyBall(those, lr=0.3)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = HeavyBall(parameters())
    resumed.load_state_dict(saved)
    again = resumed.state_dict()
    assert again["param_groups"] == saved["param_groups"]
    assert again["state"].keys() == saved["state"].keys() == {0, 1, 2}
    for number, state in saved["state"].items():
        assert torch.equal(again["state"][number]["momentum"], state["momentum"])


def test_an_optimizer_says_how_it_updates() -> None:
    optimizer = GroupedOptimizer(with_gradients(parameters()), {})
    with pytest.raises(NotImplementedError):
        optimizer.step()


def test_no_kernel_takes_cpu_tensors_or_none_at_all() -> None:
    assert not launchable([torch.ones(3)])
    assert not launchable([])


def test_no_kernel_is_imported_for_cpu_tensors() -> None:
    """Triton may not be there."""
    program = """
import sys, torch
from techniques.optimizers.lion.technique import Lion
parameter = torch.nn.Parameter(torch.ones(3))
parameter.grad = torch.ones(3)
Lion([parameter]).step()
assert not {"suite.kernels.optimizer_parts", "techniques.optimizers.lion.kernel"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_an_optimizer_of_whole_layers_refuses_shards() -> None:
    class Layerwise(HeavyBall):
        whole_layers = True

    shards = {"params": parameters(), "sharded": True}
    HeavyBall([shards]).step()
    with pytest.raises(ValueError, match="Layerwise needs the norms of whole layers"):
        Layerwise([shards])
