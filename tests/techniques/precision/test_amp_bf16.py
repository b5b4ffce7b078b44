"""Mixed precision in bfloat16: autocast to the bit, also of copies of the model and inside another autocast."""

from __future__ import annotations

import copy

import torch

from tests.runs import new_run


def test_losses_are_those_of_autocast() -> None:
    run, plain = (new_run("gpt", name, size="pico", recipe="classic", steps=4) for name in ("amp_bf16", "baseline"))
    batch, _ = plain.next_batch()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = plain.baseline.forward(plain.model, batch)
    assert run.train(1)[0] == plain.baseline.losses(outputs, batch).mean().item()


def test_the_inner_precision_wins() -> None:
    run = new_run("gpt", "amp_bf16", size="pico", recipe="classic", steps=4)
    batch, _ = run.next_batch()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        outer = run.baseline.forward(run.model, batch).logits
    with torch.no_grad():
        assert torch.equal(outer, run.baseline.forward(run.model, batch).logits)


def test_copies_of_the_model_compute_in_half_precision_too() -> None:
    run = new_run("vit", "amp_bf16", size="pico", recipe="classic", steps=4)
    batch, _ = run.next_batch()
    with torch.no_grad():
        outputs = [run.baseline.forward(model, batch) for model in (run.model, copy.deepcopy(run.model))]
    assert torch.equal(*(each if isinstance(each, torch.Tensor) else each.logits for each in outputs))
