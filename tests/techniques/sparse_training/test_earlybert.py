"""EarlyBERT: the ranking over layers, heads or neurons alone, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.loop.stack import Stack
from techniques.sparse_training.earlybert.technique import EarlyBert
from techniques.sparse_training.shared.gates import largest_of_all
from tests.runs import new_recording, new_run


def kept(masks: list[torch.Tensor]) -> list[list[int]]:
    return [mask.nonzero()[:, 0].tolist() for mask in masks]


def test_neurons_are_ranked_over_all_layers_and_each_layer_keeps_one() -> None:
    layers = [torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, -2.0, 3.0])]
    assert kept(largest_of_all(layers, 0.5)) == [[2], [0, 1, 2]]
    assert kept(largest_of_all(layers, 1 / 3)) == [[2], [0, 1, 2]]
    assert kept(largest_of_all(layers, 1 / 6)) == [[1, 2], [0, 1, 2]]


@pytest.mark.parametrize(("settings", "units"), [({"heads": 0.0}, "neurons"), ({"neurons": 0.0}, "heads")])
def test_heads_or_neurons_alone(settings: dict[str, Any], units: str) -> None:
    recording = new_recording("vit", Stack({"earlybert": EarlyBert(search=0.25, **settings)}), size="nano", steps=8)
    recording.train(8)
    probes = recording.probes()
    assert probes["earlybert.off_draw"] == probes["earlybert.off_heads"] == probes["earlybert.off_neurons"] == 0
    assert probes["earlybert.removed_parameters"] == 1
    assert probes["earlybert.masked"] < 1e-12
    gates = recording.run.technique.techniques["earlybert"].gates
    assert bool(gates.heads) == (units == "heads") and bool(gates.neurons) == (units == "neurons")


def test_a_model_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.2 of the 2 heads"):
        new_run("gpt", "earlybert:heads=0.2", size="pico", recipe="classic", steps=8)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("linear_scaling_warmup+earlybert", "schedule twice"),
        ("earlybert+linear_scaling_warmup", "multiplies the recipe's own schedule"),
    ],
)
def test_two_schedules_of_their_own_are_refused_in_either_order(order: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}.*leave one of them out"):
        new_run("gpt", order, size="pico", recipe="classic", steps=8)
