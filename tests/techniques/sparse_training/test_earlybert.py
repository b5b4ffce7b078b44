"""EarlyBERT: its gates against masks, the draw against a second ranking, and the restart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.stack import Stack
from techniques.sparse_training.earlybert.technique import EarlyBert, Restarted
from techniques.sparse_training.shared.gates import largest, largest_of_all
from tests.runs import new_recording, new_run


def kept(masks: list[torch.Tensor]) -> list[list[int]]:
    return [mask.nonzero()[:, 0].tolist() for mask in masks]


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique_by=abs), st.floats(0, 0.99))
def test_the_smallest_share_goes(values: list[int], share: float) -> None:
    mask = largest(torch.tensor(values, dtype=torch.float32), share)
    gone = sorted(abs(value) for value, stays in zip(values, mask.tolist(), strict=True) if not stays)
    assert gone == sorted(map(abs, values))[: round(share * len(values))]


def test_neurons_are_ranked_over_all_layers_and_each_layer_keeps_one() -> None:
    layers = [torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, -2.0, 3.0])]
    assert kept(largest_of_all(layers, 0.5)) == [[2], [0, 1, 2]]
    assert kept(largest_of_all(layers, 1 / 3)) == [[2], [0, 1, 2]]
    assert kept(largest_of_all(layers, 1 / 6)) == [[1, 2], [0, 1, 2]]


def test_the_schedule_begins_anew() -> None:
    recipe = Restarted(
        steps=110, batch_size=1, learning_rate=1.0, schedule="linear", search_fraction=1 / 11, search_rate=0.5
    )
    rates = [recipe.learning_rate_at(step) for step in range(110)]
    assert rates[:10] == [0.5] * 10  # one step of warm-up, at its end
    assert rates[10:20] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[20:] == pytest.approx([1 - step / 90 for step in range(1, 91)])


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
