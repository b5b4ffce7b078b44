"""CompoundGrow: rows that are cut, growths at once or alone, and the study."""

from types import SimpleNamespace

import pytest
import torch

from suite.entries.spelling import build
from suite.loop.data import generator
from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.compound_grow.length import Shorter
from techniques.incremental.compound_grow.study import Row, equal_flops, plot
from techniques.incremental.compound_grow.technique import CompoundGrow
from tests.runs import new_run


def running(technique: CompoundGrow | None, baseline: str = "gpt", steps: int = 8, size: str = "pico") -> Run:
    stack = Stack({} if technique is None else {"compound_grow": technique})
    return new_run(baseline, stack, size=size, recipe="classic", steps=steps)


# the length -----------------------------------------------------------------------------------------------------------


def test_cut_rows_are_halves_each_in_its_turn():
    rows = torch.arange(12).view(2, 6)
    cut = Shorter(lambda batch, _: batch, 2)
    seen = {tuple(cut({"input_ids": rows}, generator(seed))["input_ids"][0].tolist()) for seed in range(8)}
    assert seen == {(0, 1, 2), (3, 4, 5)}


def test_held_out_rows_stay_whole():
    run, plain = running(CompoundGrow(), size="nano"), running(None, size="nano")
    assert run.next_batch()[0]["input_ids"].shape[1] == 16
    assert torch.equal(run.data.held_out("test", 4)[0]["input_ids"], plain.data.held_out("test", 4)[0]["input_ids"])


# the run --------------------------------------------------------------------------------------------------------------


def test_both_growths_may_come_at_once():
    run = running(CompoundGrow(fractions=(0.5, 0.5)))
    run.train(4)
    assert run.anatomy.depth == 2
    assert run.anatomy.blocks[1].mlp_linears[0].module.weight.shape == (32, 128)
    run.train(4)


@pytest.mark.parametrize("settings", [{"depth": 1, "ffn": 1}, {"depth": 1, "length": 1}, {"ffn": 1, "length": 1}])
def test_one_dimension_alone(settings: dict[str, int]):
    run = running(CompoundGrow(**settings))
    losses = run.train(8)
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    run.attachment.end(run)


# the study ------------------------------------------------------------------------------------------------------------


def test_study_gives_every_dimension_the_compounds_cost():
    """Of a whole step's FLOPs: half the depth takes 0.55, half the MLPs 0.8, half the length 0.5, all of them 0.2 to
    0.35. MLPs alone cannot save as much."""
    small = {"ffn=1,length=1": 0.55, "depth=1,length=1": 0.8, "depth=1,ffn=1": 0.5}

    def counts(stacks: list[str]) -> dict[str, SimpleNamespace]:
        def points(stack: str) -> list[SimpleNamespace]:
            low = next((cost for name, cost in small.items() if set(name.split(",")) <= set(_settings(stack))), None)
            steps = [0.2, 0.35, 1.0, 1.0, 1.0] if low is None else [low, low, 1.0, 1.0, 1.0]
            places = (0.1, 0.3, 0.5, 0.7, 0.9)
            return [
                SimpleNamespace(progress=p, counters=SimpleNamespace(flops=1e9 * f))
                for p, f in zip(places, steps, strict=True)
            ]

        return {stack: SimpleNamespace(points=points(stack)) for stack in stacks}

    asked: list[str] = []

    def runs(stacks: list[str]) -> dict[str, list[tuple[SimpleNamespace, SimpleNamespace]]]:
        asked.extend(stacks)
        learned = lambda loss: SimpleNamespace(final=SimpleNamespace(loss=loss))  # noqa: E731
        return {
            stack: [(learned(2.0), learned(2.0 + place / 10)), (learned(2.0), learned(2.2))]
            for place, stack in enumerate(stacks)
        }

    table = equal_flops(SimpleNamespace(counts=counts, runs=runs))  # type: ignore[arg-type]
    rows = {each.contender: each for each in (Row(*each) for each in table.rows)}
    cost = 0.25 * 0.2 + 0.25 * 0.35 + 0.5
    assert rows["compound"].flops == pytest.approx(cost)
    assert rows["depth alone"].flops == pytest.approx(cost, abs=1e-3)
    assert rows["depth alone"].small_part == pytest.approx((1 - cost) / 0.45, abs=1e-3)
    assert rows["length alone"].flops == pytest.approx(cost, abs=1e-3)
    assert rows["MLP width alone"] == pytest.approx(rows["MLP width alone"]._replace(flops=0.81, small_part=0.95))
    assert rows["from scratch"].seeds == 2
    assert "compute=0.637" in asked[-1]
    for stack in asked:
        build(stack)
    assert len(plot([table]).axes[0].get_yticks()) == 5
    assert equal_flops(SimpleNamespace(counts=lambda _: {})).rows == []  # type: ignore[arg-type]


def _settings(stack: str) -> list[str]:
    return stack.partition(":")[2].split(",")
