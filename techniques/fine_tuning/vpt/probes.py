"""Tells what recorded steps show of visual prompt tuning, beside the pre-trained model with the prompts put into each
of its blocks alone, and taken out behind it: between blocks there are none, unless they are shallow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.model.anatomy import anatomy
from suite.model.segments import split_hidden
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.fine_tuning.shared.tuning_probes import at_the_start_and_in_the_middle as records
from techniques.fine_tuning.shared.tuning_probes import heads_in, trained_numbers, tuning_probes
from techniques.fine_tuning.vpt.technique import Vpt
from techniques.shared.plain import apart, outputs_of, plain_model

__all__ = ["probes", "records"]

OF_ITS_BASELINES = True
LEADING = {"vit": 0, "mae": 1}  # class tokens: a ViT of the CPU sizes has none
PATCH_INPUTS = 4  # 2 x 2 grey pixels, at the CPU sizes


@judged("elsewhere", "Prompts and head get a gradient, and nothing else does", "Section 3.2", id="prompts_and_head")
@judged(
    "frozen_moved",
    "No pre-trained weight moves by a bit",
    "Section 3.2",
    id="backbone_is_frozen",
    note="the head aside",
)
@judged("at_rest", "The prompts of every layer, and the head, move", "Section 3.2", id="prompts_are_trained")
@judged(
    "spread",
    "Prompts start uniform between +-sqrt(6 / (3 P^2 + d))",
    "PromptedTransformer of the authors' vit_prompt/vit.py",
    id="initialization",
    equals=1.0,
    tolerance=0.05,  # the largest of 320 numbers or more
    note="3 P^2 numbers make a patch in three colours; here P^2 grey ones",
)
@judged(
    "lengths",
    "Rows are longer by p in every layer, and no longer in the last than in the first",
    "Section 3.2, equations 4 to 6",
    id="same_length",
)
@judged(
    "misplaced",
    "The class token stays first, and each layer's prompts stand behind it",
    "Section 3.2, equations 4 to 6",
    id="behind_the_class_token",
)
@judged(
    "outputs_off",
    "Every layer reads its own prompts, and what it makes of them goes nowhere",
    "Section 3.2, equations 5 and 6",
    id="each_layer_reads_its_own",
    at_most=1e-12,  # of the largest output, in float64: some thousand roundings
)
@judged(
    "gradient_roundings",
    "The gradients of prompts and head are those of the frozen model that reads them",
    "Section 3.2",
    id="gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "training",
    "The frozen model is in evaluation mode while its prompts train: nothing in it is dropped",
    "train() of the authors' vit_prompt/vit.py",
    id="evaluation_mode",
)
@judged(
    "rate", "Thirty times the learning rate of full fine-tuning", "This entry's choice", equals=30.0, tolerance=1e-6
)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each number of prompts and head, and none for the rest",
    "follows from section 3.2",
    equals=8.0,
    kind="counted",
    note="two moments in float32",
)
def probes(recording: Recording, own: Vpt) -> Mapping[str, float]:
    """Includes those of :func:`tuning_probes`. ``outputs_off`` is of the pre-trained model whose blocks each read the
    prompt, relative to the largest, in float64. For a claim, ``prompt_parameters`` is what is trained beside the head,
    over L p d, or p d."""
    if not own.length:
        return {}
    run, trace = recording.run, recording.trace
    plain = plain_model(recording).eval()
    parts, leading = anatomy(plain), LEADING[run.baseline.id]
    prompts = [f"{block.path}.prompt" for block in (parts.blocks if own.deep else parts.blocks[:1])]
    trained = [*prompts, *sorted(heads_in(plain))]
    tuned = tuning_probes(recording, plain, trained)
    start = recording.traces[0].before.parameters
    bound = (6 / (PATCH_INPUTS + parts.width)) ** 0.5
    largest = max((start[name].abs().max().item() for name in prompts if name in start), default=torch.inf)

    with recording.at(trace.before.parameters):
        ours = outputs_of(recording, trace, run.model, torch.float64)
        rows = _rows(recording, trace, run.model)
    plain_row = _rows(recording, trace, plain)[0]
    misplaced = int((rows[0][:, :leading] != plain_row[:, :leading]).sum())
    for name, row in zip(prompts, rows, strict=False):
        expected = trace.before.parameters[name]
        inserted = row[:, leading : leading + own.length]
        misplaced += int((inserted != expected).sum()) if inserted.shape[1:] == expected.shape else expected.numel()

    plain.double().requires_grad_(False)
    values = {name: trace.before.parameters[name].double().requires_grad_() for name in trained}
    for name in heads_in(plain):
        module, _, last = name.rpartition(".")
        del plain.get_submodule(module)._parameters[last]
        setattr(plain.get_submodule(module), last, values[name])
    batch = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in trace.batch.items()}
    segments = [(index, index + 1) for index in range(parts.depth)]
    with parts.segmented(segments, _reading([values[name] for name in prompts], leading)):
        outputs = run.baseline.forward(plain, batch)
    loss = run.baseline.losses(outputs, batch).mean()
    gradients = dict(zip(trained, torch.autograd.grad(loss, list(values.values())), strict=True))
    logits = outputs.logits.detach()
    return {
        **tuned,
        "prompt_parameters": trained_numbers(trace, prompts) / (len(prompts) * own.length * parts.width),
        "spread": largest / bound,
        "lengths": len({row.shape[1] for row in rows} ^ {plain_row.shape[1] + own.length}),
        "misplaced": misplaced,
        "outputs_off": ((ours - logits).abs().max() / logits.abs().max()).item(),
        "gradient_roundings": apart(trace.of("backward")[0].gradients, gradients),
        "training": _training_in_a_step(recording),
    }


def _training_in_a_step(recording: Recording) -> int:
    """Counts the modules in training mode, of the model that a step of the same run is made with."""
    run = recording.twin().run
    seen: list[int] = []
    run.model.register_forward_pre_hook(
        lambda model, _: seen.append(sum(module.training for module in model.modules()))
    )
    run.train(1)
    return max(seen)


@torch.no_grad()
def _rows(recording: Recording, trace: Trace, model: Any) -> list[Tensor]:
    """Returns what each block of the main stack reads."""
    rows: list[Tensor] = []
    copied = copy.deepcopy(model).eval()
    for block in anatomy(copied).blocks:
        block.module.register_forward_pre_hook(
            lambda _, args, kwargs: rows.append(split_hidden(args, kwargs)[0]), with_kwargs=True
        )
    recording.run.baseline.forward(copied, trace.batch)
    return rows


def _reading(prompts: list[Tensor], leading: int) -> Callable[[Callable[[Tensor], Any], Tensor], Any]:
    """Returns a function that reads each block as a segment: it reads its prompt, or what the one before it has made of
    a shallow one."""
    length, waiting = len(prompts[0]), list(prompts)

    def read(block: Callable[[Tensor], Any], row: Tensor) -> Tensor:
        prompt = waiting.pop(0)
        prompt = prompt.expand(len(row), *prompt.shape[-2:])
        output: Tensor = block(torch.cat([row[:, :leading], prompt, row[:, leading:]], dim=1))
        before, prompt_output, behind = output.split([leading, length, row.shape[1] - leading], dim=1)
        if not waiting:
            waiting.append(prompt_output)
        return torch.cat([before, behind], dim=1)

    return read
