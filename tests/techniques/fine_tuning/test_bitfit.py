"""BitFit's gradients against full fine-tuning's, of which all but the biases is thrown away."""

import torch
from torch import nn

from tests.runs import new_run


def test_gradients_are_full_fine_tunings_of_biases_alone() -> None:
    run, plain = (
        new_run("gpt", stack, size="pico", recipe="classic", task="adapt", steps=2) for stack in ("bitfit", "baseline")
    )
    batch, _ = plain.data.batch(0, 0, 4)
    for each in (run, plain):
        each.baseline.losses(each.baseline.forward(each.model, batch), batch).mean().backward()
    biases = {id(each.bias) for each in plain.model.modules() if isinstance(getattr(each, "bias", None), nn.Parameter)}
    theirs = {name: each.grad for name, each in plain.model.named_parameters() if id(each) in biases}
    ours = {name: each.grad for name, each in run.model.named_parameters() if each.grad is not None}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-7)
