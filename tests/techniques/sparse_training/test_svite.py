"""SViTE: its death rate and its exploration written a second time, and the invariants of its masks."""

import math

import pytest
import torch

from suite.contract.run import Run
from suite.contract.stack import Stack
from suite.record.job import StackError
from techniques.shared.masks import density, masked
from techniques.sparse_training.svite.technique import SViTE, death_rate
from tests.runs import new_recording, new_run


def running(technique: SViTE, steps: int = 12, baseline: str = "vit") -> Run:
    return new_run(baseline, Stack({"svite": technique}), size="pico", recipe="classic", steps=steps)


def test_death_rate_is_that_of_torchs_cosine_annealing():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40, eta_min=0.005)
    for step in range(1, 41):
        optimizer.step()
        annealing.step()
        assert death_rate(step, 40, 0.5, 0.005) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_one_exploration_one_weight_at_a_time():
    """From the weights after the update, which a run has that explores later, and the gradient before it, dense."""
    run, later = running(SViTE(interval=2), steps=8), running(SViTE(interval=7), steps=8)
    run.train(1)
    later.train(1)
    later.optimizer.zero_grad()
    later.backward(later.forward(later.next_batch()[0]))
    gradients = [weight.grad.clone() for weight, _ in masked(later.anatomy)]  # type: ignore[union-attr]
    run.train(1)
    later.train(1)
    for (weight, mask), (updated, old), gradient in zip(
        masked(run.anatomy), masked(later.anatomy), gradients, strict=True
    ):
        count = math.ceil(death_rate(2, 8, 0.5, 0.005) * int(old.sum()))
        places = [tuple(place) for place in old.nonzero().tolist()]
        kept = set(sorted(places, key=lambda place: abs(updated[place].item()))[count:])
        free = [tuple(place) for place in torch.ones_like(old).nonzero().tolist() if tuple(place) not in kept]
        grown = set(sorted(free, key=lambda place: -abs(gradient[place].item()))[:count])
        assert {tuple(place) for place in mask.nonzero().tolist()} == kept | grown
        assert torch.equal(weight, updated * (old & mask))


def test_interval_is_a_hundredth_of_the_run():
    own = SViTE()
    assert [step for step in range(1, 1000) if own.explores_after(step, 700)][:3] == [7, 14, 21]
    assert [step for step in range(1, 9) if own.explores_after(step, 8)] == [2, 4, 6]


def test_probes_hold_of_other_settings_and_notice_another_rate():
    recording = new_recording("mae", "svite:sparsity=0.7,death=0.3,interval=3", size="pico", recipe="classic", steps=8)
    recording.train(8)
    probes = recording.probes()
    wrong = ("connections_changed", "off_schedule", "misplaced", "grown_off_zero", "moved", "dead", "dead_moved")
    assert [probes[f"svite.{name}"] for name in wrong] == [0] * len(wrong)
    assert probes["svite.sparsity"] == pytest.approx(0.7, abs=1e-3)
    recording.run.technique.techniques["svite"].death = 0.2  # type: ignore[attr-defined]
    assert recording.probes()["svite.misplaced"] > 0


def test_bad_settings_say_what_fits():
    for settings, words in (("sparsity=1", "share of zeros"), ("death=0.001", "last_death"), ("interval=-1", "1 step")):
        with pytest.raises(StackError, match=words):
            new_run("vit", f"svite:{settings}", size="pico", steps=8)


def test_its_flops_are_sparse_but_for_the_dense_gradients_of_explorations():
    run = running(SViTE(interval=4))
    run.train(run.recipe.steps)
    share = density(run)
    (spent,) = run.probes().values()
    assert spent == pytest.approx((2 * (2 * share + 1) + 10 * 3 * share) / 36)  # after steps 4 and 8 of 12
    assert not run.technique.techniques["svite"].dense, "gradients are kept to the step's end"  # type: ignore[attr-defined]
    assert running(SViTE(sparsity=0.0)).probes() == {}
