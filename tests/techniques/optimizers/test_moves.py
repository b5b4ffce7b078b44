"""What probes of optimizers have in common: distances in roundings, and a step from another moment."""

import math
from typing import Any

import pytest
import torch

from suite.reading.recording import Recording
from suite.record.job import Job, Setting
from techniques.shared.adam_moves import cauchy_schwarz, in_rates
from techniques.shared.moves import again, moves, off, over_the_baselines, scaled


def recorded(stack: str, steps: int = 4, **setting: Any) -> Recording:
    setting = {"baseline": "vit", "size": "pico", "steps": steps, **setting}
    recording = Recording.of(Job(setting=Setting(**setting), stack=stack))
    recording.train(steps)
    return recording


def test_a_distance_is_in_roundings_of_what_was_added() -> None:
    expected = torch.tensor([1.0, 0.0]).double()
    ulp = torch.finfo(torch.float32).eps
    assert off(torch.tensor([1.0, 0.0]), expected, expected) == 0
    assert off(torch.tensor([1 + 3 * ulp, 0.0]), expected, expected, 2.0) == 1
    assert off(torch.tensor([1.0, math.nan]), expected, 1.0) == math.inf


def test_a_step_again_is_the_step_and_without_decay_it_is_another() -> None:
    recording = recorded("sgd_momentum")
    update = recording.trace.update
    same, bare = again(recording, update.before), again(recording, scaled(update.before, 1.0, {}, weight_decay=0.0))
    assert all(torch.equal(move.after, update.after.parameters[move.name]) for move in moves(same))
    assert any(not torch.equal(move.after, update.after.parameters[move.name]) for move in moves(bare))
    assert all(move.hyper["weight_decay"] == 0 and move.state("velocity").isnan().all() for move in moves(bare))


def test_the_baseline_over_itself_is_1() -> None:
    assert over_the_baselines(recorded("adam:decay=decoupled")) == {"rate": 1.0, "decay": 1.0}


@pytest.mark.parametrize(
    ("stack", "setting"),
    [("lamb", {}), ("layerwise_trust", {}), ("sgd_momentum", {}), ("lars", {}), ("lora", {"task": "adapt"})],
)
def test_a_run_whose_middle_is_its_end_has_no_rate_to_compare(stack: str, setting: dict[str, Any]) -> None:
    """The last of two steps is made at rate 0; where the first is recorded, too, that one tells."""
    recording = recorded(stack, steps=2, **setting)
    assert recording.run.baseline.recipe_of(recording.run.job.setting).learning_rate_at(1) == 0
    assert (f"{stack}.rate" in recording.probes()) == (len(recording.traces) > 1)


def test_the_bound_of_cauchy_and_schwarz_is_met_by_the_gradients_that_it_is_of() -> None:
    """g_i = w_i / u_i, oldest first, and no other scale."""
    beta1, beta2, m, v = 0.9, 0.95, 0.0, 0.0
    for age in range(6, -1, -1):
        g = (beta1 / beta2) ** age
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    reached = m / (1 - beta1**7) / math.sqrt(v / (1 - beta2**7))
    assert math.isclose(reached, cauchy_schwarz(beta1, beta2, 7), rel_tol=1e-12)


def test_decay_is_no_part_of_how_far_a_coordinate_moved() -> None:
    recording = recorded("adamw:normalised=1e3")
    assert in_rates(recording.traces[0]).max() <= 1
