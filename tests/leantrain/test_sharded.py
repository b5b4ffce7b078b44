"""Optimizers, wrappers and the averager under FSDP2 on two real ranks, against one process with whole tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.leantrain.ranks import CASES, KERNELS
from tests.real_ranks import two_of


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ``ranks.py`` wrote, by rank."""
    return two_of(Path(__file__).with_name("ranks.py"), tmp_path_factory.mktemp("ranks"), TRITON_INTERPRET="1")


@pytest.mark.parametrize(
    ("way", "name"), [*(("sharded", name) for name in CASES), *(("kernel", name) for name in KERNELS)]
)
def test_shards_are_updated_as_whole_tensors_are(two_ranks: list[dict[str, Any]], way: str, name: str) -> None:
    for a, b in zip(two_ranks[0][way][name], two_ranks[0]["alone"][name], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


def test_ranks_hold_equal_weights_to_the_bit(two_ranks: list[dict[str, Any]]) -> None:
    first, second = two_ranks
    for way, names in first.items():
        for name, weights in names.items():
            assert all(torch.equal(a, b) for a, b in zip(weights, second[way][name], strict=True)), (way, name)


@pytest.mark.parametrize("name", ["adamw", "lion", "lamb", "sgd"])
def test_a_sharded_checkpoint_continues_to_the_bit(two_ranks: list[dict[str, Any]], name: str) -> None:
    """By torch.distributed.checkpoint's state dict, which takes a step of rate 0 to make a state."""
    for a, b in zip(two_ranks[0]["resumed"][name], two_ranks[0]["sharded"][name], strict=True):
        assert torch.equal(a, b)
