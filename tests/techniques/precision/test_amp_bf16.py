"""bfloat16 training: the recipe's autocast, and the reference to the bit where that is the recipe."""

from __future__ import annotations

import pytest
import torch

from suite.loop.run import Run
from tests.runs import new_run


def running(stack: str, baseline: str = "gpt", recipe: str = "classic") -> Run:
    return new_run(baseline, stack, size="pico", recipe=recipe, steps=6)


def test_it_is_the_reference_to_the_bit_where_the_recipe_is_bfloat16() -> None:
    mine, reference = running("amp_bf16", recipe="modern"), running("baseline", recipe="modern")
    assert mine.train(2) == reference.train(2)
    assert all(map(torch.equal, mine.model.parameters(), reference.model.parameters()))


@pytest.mark.parametrize("baseline", ["gpt", "mae"])
def test_gradients_are_torchs_under_autocast_and_near_float32s(baseline: str) -> None:
    run, plain = running("amp_bf16", baseline), running("baseline", baseline)
    batch, _ = run.next_batch()

    def gradients(of: Run, enabled: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outputs = of.baseline.forward(of.model, batch)
        loss = of.baseline.losses(outputs, batch).mean()
        trained = [each for each in of.model.parameters() if each.requires_grad]
        return [
            torch.zeros(1) if each is None else each for each in torch.autograd.grad(loss, trained, allow_unused=True)
        ]

    torch.manual_seed(1)
    run.backward(run.forward(batch))
    own = [p.grad if p.grad is not None else torch.zeros(1) for p in run.model.parameters() if p.requires_grad]
    assert all(map(torch.equal, own, gradients(plain, True)))
    exact = torch.cat([each.flatten() for each in gradients(plain, False)])
    assert 0 < (torch.cat([each.flatten() for each in own]) - exact).norm() < 0.05 * exact.norm()
