"""EarlyBERT: its gates against masks, the draw against a second ranking, and the restart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.anatomy import in_features, out_features
from techniques.sparse_training.earlybert.technique import EarlyBert, Restarted
from techniques.sparse_training.shared.gates import GatedInput, largest, largest_of_all
from tests.runs import new_recording, new_run

BASELINES = ("bert", "gpt", "mae", "vit")


def running(own: EarlyBert, baseline: str = "gpt", steps: int = 20) -> Run:
    return new_run(baseline, Stack({"earlybert": own}), size="nano", recipe="classic", steps=steps)


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


@pytest.mark.parametrize("baseline", BASELINES)
def test_gates_of_one_change_nothing(baseline: str) -> None:
    plain = new_run(baseline, size="nano", recipe="classic", steps=20)
    gated = running(EarlyBert(penalty=0.0), baseline)
    batch, _ = plain.next_batch()
    assert torch.equal(plain.forward(batch), gated.forward(batch))


@pytest.mark.parametrize("baseline", BASELINES)
def test_heads_and_neurons_are_gone_after_the_search(baseline: str) -> None:
    own = EarlyBert(search=0.2)
    run, plain = running(own, baseline), new_run(baseline, size="nano", recipe="classic", steps=20)
    run.train(3)
    assert any(isinstance(each, GatedInput) for each in run.model.modules())
    run.train(1)
    assert not any(isinstance(each, GatedInput) for each in run.model.modules())
    neurons = [0, 0]
    for block, whole in zip(run.anatomy.every_block, plain.anatomy.every_block, strict=True):
        assert block.attention_output and block.mlp_output and whole.attention_output and whole.mlp_output
        heads = [in_features(each.attention_output.module) for each in (block, whole)]
        assert heads[0] == heads[1] * 3 // 4
        assert out_features(block.attention_output.module) == block.width
        makers = [part for part in block.attention_linears if part != block.attention_output]
        assert sum(out_features(part.module) for part in makers) == 3 * heads[0]
        neurons[0] += in_features(block.mlp_output.module)
        neurons[1] += in_features(whole.mlp_output.module)
    assert neurons[0] == neurons[1] - round(0.4 * neurons[1])
    assert not run.optimizer.state
    assert [stack.heads for stack in run.anatomy.stacks] == [3] * len(run.anatomy.stacks)
    held = {id(each) for group in run.optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in run.model.parameters() if each.requires_grad}
    assert all(math.isfinite(loss) for loss in run.train(5))


def test_the_drawn_network_has_initial_weights() -> None:
    run, plain = running(EarlyBert(search=0.2), "bert"), new_run("bert", size="nano", recipe="classic", steps=20)
    run.train(4)
    pruned, whole = run.model.state_dict(), plain.model.state_dict()
    assert pruned.keys() == whole.keys()
    for name, tensor in pruned.items():
        if tensor.shape == whole[name].shape:
            assert torch.equal(tensor, whole[name]), name
        else:
            rows = {tuple(row) for row in whole[name].reshape(len(whole[name]), -1).tolist()}
            short = tensor.reshape(len(tensor), -1)
            if short.shape[1] == whole[name].reshape(len(whole[name]), -1).shape[1]:
                assert all(tuple(row) in rows for row in short.tolist()), name


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


@pytest.mark.parametrize("baseline", BASELINES)
def test_probes_hold_of_a_longer_search(baseline: str) -> None:
    recording = new_recording(baseline, "earlybert:search=0.5", size="pico", recipe="classic", steps=8)
    recording.train(8)
    probes = {name.partition(".")[2]: value for name, value in recording.probes().items()}
    zero = ("off_one", "off_search", "off_heads", "off_neurons", "off_draw", "off_state", "untrained")
    assert [probes[name] for name in zero] == [0] * len(zero)
    assert probes["penalty"] == pytest.approx(1e-4, rel=0.01)
    assert probes["gradient_roundings"] < 1000


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
