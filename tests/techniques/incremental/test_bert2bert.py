"""bert2BERT: the paper's formula of any units by loops, and the run around the growth."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.width import Role
from techniques.incremental.bert2bert.technique import Bert2Bert
from techniques.incremental.shared.growth import copied_units
from tests.runs import new_run


def running(technique: Bert2Bert | None, baseline: str = "gpt", steps: int = 8, size: str = "pico") -> Run:
    stack = Stack({} if technique is None else {"bert2bert": technique})
    return new_run(baseline, stack, size=size, recipe="classic", steps=steps)


MAPPING = st.lists(st.integers(0, 2), max_size=5).map(lambda further: [0, 1, 2, *further])  # of 3 units, none left out


@given(MAPPING, MAPPING)
def test_fpi_is_the_papers_formula(rows: list[int], columns: list[int]):
    """For any units, drawn as often as one likes; and what a matrix so grown makes of copies are the copies."""
    weight, x = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    roles = Role("units", len(rows)), Role("residual", len(columns), read=True)
    wide = copied_units(weight, roles, {"units": rows, "residual": columns})
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            assert wide[i, j] == weight[row, column] / columns.count(column)
    torch.testing.assert_close(wide @ x[columns], (weight @ x)[rows])


def test_the_jump_is_that_of_the_first_loss_after_the_growth():
    run = running(Bert2Bert())
    losses = run.train(5)
    assert run.technique.probes(run)["bert2bert.loss_jump"] == losses[2] - losses[1]


def test_what_comes_before_grows_along():
    run = new_run("gpt", "layerscale+bert2bert", size="pico", recipe="classic", steps=8)
    scale: Tensor = run.anatomy.blocks[0].branches[0].module.scale
    assert scale.shape == (16,)
    run.train(3)
    assert run.anatomy.blocks[0].branches[0].module.scale.shape == (32,)
