"""AutoProg: what is copied where, what a search chooses, and that its steps are steps of the run."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.autoprog.growth import best, block_cost, newcomers, sources
from techniques.incremental.autoprog.technique import AutoProg, Candidate
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: AutoProg, steps: int = 16) -> Run:
    return new_run("vit", Stack({"autoprog": technique}), size="nano", recipe="classic", steps=steps)


def smallest(technique: AutoProg) -> AutoProg:
    """All candidates are as good: the first is taken."""
    technique.judged = lambda run: ([1.0] * len(technique.candidates), [1.0] * len(technique.candidates))  # type: ignore[method-assign]
    return technique


def test_blocks_are_copied_next_to_where_they_stand():
    assert sources(2, 4) == [0, 0, 1, 1]
    assert sources(2, 3) == [0, 1, 1]
    assert sources(4, 6) == [0, 1, 2, 2, 3, 3]
    assert newcomers(2, 4) == [1, 3]
    assert newcomers(6, 12) == [1, 3, 5, 7, 9, 11]


@given(st.integers(1, 12), st.integers(0, 12))
def test_growth_is_the_authors_for_up_to_twice_the_depth(old: int, more: int):
    """``new_idx`` of their prog/helpers.py, by its meaning: order is kept, the first blocks have floor(new / old)
    copies and the last new mod old ones one more."""
    new = min(old + more, 2 * old)
    origin = sources(old, new)
    assert origin == sorted(origin)
    copies = [origin.count(index) for index in range(old)]
    assert copies == [new // old] * (old - new % old) + [new // old + 1] * (new % old)
    assert len(newcomers(old, new)) == new - old


def test_the_best_lies_farthest_below_the_power_law():
    costs = [1.0, 2.0, 4.0, 8.0]
    law = [3 * cost**-0.25 for cost in costs]
    assert best([law[0], law[1], 0.98 * law[2], law[3]], costs) == 2
    assert best([3.0, 2.9, 3.1, 3.2], costs) == 1  # where cost brings nothing, the least loss
    assert best([1.0, 1.0], [1.0, 1.0]) == 0
    assert best([0.0, 1.0], [1.0, 2.0]) == 0
    assert best([math.nan, 1.0], [1.0, 2.0]) == 0


@given(st.lists(st.floats(0.1, 5), min_size=3, max_size=9), st.floats(0.1, 10), st.floats(0.1, 10))
def test_units_of_loss_and_cost_do_not_matter(losses: list[float], loss_unit: float, cost_unit: float):
    costs = [1.7**index for index in range(len(losses))]
    chosen = best(losses, costs)
    scaled = best([loss_unit * each for each in losses], [cost_unit * each for each in costs])
    x, y = (torch.tensor(each, dtype=torch.float64).log() for each in (costs, losses))
    slope = ((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()
    scores = y + max(-slope.item(), 0.0) * x
    assert scores[chosen] == pytest.approx(scores.min().item(), abs=1e-7)
    assert scores[scaled] == pytest.approx(scores.min().item(), abs=1e-7)


def test_of_two_candidates_on_their_line_the_smaller_is_taken():
    assert best([3.0, 0.25], [1.0, 1.7]) == best([3.0, 0.25], [0.5, 0.85]) == 0


def test_a_blocks_cost_is_that_of_its_products():
    run = new_run("vit", size="nano", recipe="classic", steps=2)
    d, tokens = 96, 16
    assert block_cost(run.anatomy.blocks[0], tokens) == 12 * d * d * tokens + 2 * tokens**2 * d


def test_candidates_are_the_subnets_of_the_supernet():
    """The loss of each, beside a model that consists of just its blocks."""
    technique = AutoProg()
    run = running(technique)
    run.train(1)
    batch, _ = run.next_batch()
    losses, costs = technique.judged(run)
    assert technique.candidates == [Candidate(depth, side) for depth in (2, 3, 4) for side in (4, 6, 8)]
    assert costs == sorted(costs) or costs[0] == min(costs)
    assert costs[-1] == max(costs)
    blocks = [block.module for block in run.anatomy.blocks]
    kept = {2: (0, 2), 3: (0, 2, 3), 4: (0, 1, 2, 3)}
    run.model.eval()
    with torch.no_grad():
        for candidate, loss in zip(technique.candidates, losses, strict=True):
            pictures = torch.nn.functional.interpolate(
                batch["pixel_values"], size=(candidate.side,) * 2, mode="bilinear", antialias=True
            )
            run.anatomy.set_blocks([blocks[index] for index in kept[candidate.depth]])
            logits = run.baseline.forward(run.model, {**batch, "pixel_values": pictures})
            assert run.baseline.losses(logits, batch).mean().item() == pytest.approx(loss, rel=1e-5)
    run.anatomy.set_blocks(blocks)


def test_the_average_is_exponential():
    technique = AutoProg(memory=0.5)
    run = running(technique)
    run.train(1)
    name = "attn.proj.weight"
    before = technique.average[0][name].double()
    run.train(1)
    weight = run.anatomy.blocks[0].module.get_parameter(name).detach().double()
    expected = before + (weight - before) / (1 + 0.5 * 16)
    torch.testing.assert_close(technique.average[0][name].double(), expected, rtol=1e-5, atol=1e-7)


def test_a_search_costs_its_steps_and_no_more():
    technique = AutoProg()
    assert technique.search_steps(SimpleNamespace(recipe=SimpleNamespace(steps=700))) == 14  # type: ignore[arg-type]
    assert technique.search_steps(SimpleNamespace(recipe=SimpleNamespace(steps=16))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("saved_at", [1, 9])
def test_a_resumed_run_is_where_it_was(tmp_path: Path, saved_at: int):
    whole = running(smallest(AutoProg()))
    whole.train(saved_at)
    whole.save(tmp_path / "state")
    losses = whole.train(6)
    resumed = running(smallest(AutoProg()))
    resumed.load(tmp_path / "state")
    assert resumed.train(6) == losses


@pytest.mark.parametrize("name", ["swin", "pvt", "beit", "xcit"])
def test_models_that_cannot_grow_are_refused(name: str):
    with pytest.raises(ValueError, match=r"pictures|patches|alike|left out"):
        further_run(name, AutoProg())


def test_bad_settings_say_what_fits():
    with pytest.raises(ValueError, match="pictures"):
        new_run("gpt", AutoProg(), size="pico", recipe="classic", steps=4)
    with pytest.raises(ValueError, match="does not take pictures of 4x4"):
        new_run("mae", AutoProg(), size="pico", recipe="classic", steps=4)
    with pytest.raises(ValueError, match="modern"):
        new_run("vit", "autoprog", size="pico", recipe="compiled", steps=4)


def test_one_technique_alone_changes_the_depth():
    run = new_run("vit", "autoprog+progressive_stacking", size="nano", recipe="classic", steps=8)
    with pytest.raises(ValueError, match="both change the depth"):
        run.train(8)
