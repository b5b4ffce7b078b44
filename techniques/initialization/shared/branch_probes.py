"""Tells what recorded steps show of residual branches: scales at their ends, blocks that are the identity, absent
norms.

For the probes of ``layerscale``, ``rezero``, ``skipinit`` and ``fixup``, on the baselines' own models, whose branches
end in a linear layer each and whose norms are layer norms.

s (W h + b) = (s W) h + s b: a plain model with the last layers' rows so multiplied is the same function, and the chain
rule gives the gradients that a recorded step must have had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.model.anatomy import Part, anatomy, weight_matrix
from suite.model.segments import split_hidden
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace, Values
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, names_in


def without_layer_norms(plain: nn.Module) -> nn.Module:
    """Returns the plain model, fresh, with the identity in place of its layer norms and with what it looks up in tables
    times the square root of their width, or brought to unit size where that takes less."""
    for name, module in list(plain.named_modules()):
        if isinstance(module, nn.LayerNorm):
            plain.set_submodule(name, nn.Identity())
        elif isinstance(module, nn.Embedding):
            factor = min(math.sqrt(module.embedding_dim), 1 / module.weight.detach().std().item())
            module.register_forward_hook(lambda _, args, output, factor=factor: output * factor)
    return plain


def layer_norms_run(recording: Recording, trace: Trace) -> int:
    """Counts the layer norms that ran in a recorded step."""
    modules = dict(recording.run.model.named_modules())
    return sum(isinstance(modules[name], nn.LayerNorm) for name in set(trace.ran))


def added(plain: nn.Module, values: Values) -> int:
    """Counts the numbers among ``values`` more than the plain model has."""
    return sum(value.numel() for value in values.values()) - sum(parameter.numel() for parameter in plain.parameters())


def own_names(plain: nn.Module, values: Values) -> list[str]:
    """Returns the names of the parameters that the plain model lacks."""
    return sorted(values.keys() - set(names_in(plain, values).values()))


def otherwise_without_decay(recording: Recording, trace: Trace, names: Iterable[str]) -> int:
    """Counts the numbers of these parameters that the recorded step moved otherwise than it had without weight
    decay."""
    before, after = trace.update.before, trace.update.after
    undecayed = {name: {**hyper, "weight_decay": 0.0} for name, hyper in before.hyper.items()}
    moved = recording.replayed(Moment(before.parameters, before.gradients, before.state, undecayed))
    return sum(int((moved[name] != after.parameters[name]).sum()) for name in names)


def without_gradient(trace: Trace, names: Iterable[str]) -> int:
    """Counts those of the parameters whose gradient in a recorded step is missing, or 0 throughout."""
    gradients = trace.of("backward")[0].gradients
    return sum(name not in gradients or not gradients[name].any() for name in names)


def first_rate(recording: Recording, trace: Trace) -> float:
    """Returns the learning rate of a recorded step over the one that the baseline's recipe has there without a
    warm-up."""
    recipe = recording.run.baseline.recipe_of(recording.run.job.setting)
    decayed = (recipe.steps - trace.step - 1) / recipe.steps  # the CPU sizes' decay is linear
    return max(hyper["lr"] for hyper in trace.update.before.hyper.values()) / (recipe.learning_rate * decayed)


# blocks as functions --------------------------------------------------------------------------------------------------


class Passed(NamedTuple):
    """Holds the hidden states [batch, tokens, width] that a block got and gave."""

    before: Tensor
    after: Tensor


@contextmanager
def passing(recording: Recording, parameters: Values, trace: Trace) -> Iterator[list[list[Passed]]]:
    """Records what each block of each stack gets and gives for a recorded batch, with the step's dropout; meanwhile the
    run's model has these parameters, so that gradients can be asked for."""
    run = recording.run
    seen: list[list[Passed]] = []
    with ExitStack() as stack:
        stack.enter_context(unchanged_randomness(run.device))
        stack.enter_context(recording.at(parameters))
        for blocks in anatomy(run.model).stacks:
            own: list[Passed] = []
            seen.append(own)

            def note(_: nn.Module, args: Any, kwargs: Any, output: Any, own: list[Passed] = own) -> None:
                own.append(Passed(split_hidden(args, kwargs)[0], output[0] if isinstance(output, tuple) else output))

            for block in blocks.blocks:
                handle = block.module.register_forward_hook(note, with_kwargs=True)
                stack.callback(handle.remove)
        trace.random.restore()
        run.baseline.forward(run.model, trace.batch)
        yield seen


def off_identity(stacks: list[list[Passed]]) -> int:
    """Counts the numbers in which what blocks gave differs from what they got."""
    return sum(int((block.before != block.after).sum()) for blocks in stacks for block in blocks)


def off_identity_jacobian(stacks: list[list[Passed]]) -> int:
    """Counts the numbers in which Jᵀv differs from a random v, J being the Jacobian of a stack's output by its input.
    Vectors for which they agree are a subspace: where v is random they do so, with probability 1, only if J is the
    identity."""
    total = 0
    for blocks in stacks:
        first, last = blocks[0].before, blocks[-1].after
        vector = torch.randn(last.shape, generator=torch.Generator().manual_seed(0)).to(last.device)
        (product,) = torch.autograd.grad(last, first, vector, retain_graph=True)
        total += int((product != vector).sum())
    return total


def variance_growth(stacks: list[list[Passed]]) -> float:
    """Returns the variance of the hidden states behind the blocks over that before them; the largest of the stacks."""
    return max((blocks[-1].after.var() / blocks[0].before.var()).item() for blocks in stacks)


# scales ---------------------------------------------------------------------------------------------------------------


def scale_gradient_roundings(recording: Recording, trace: Trace, plain: nn.Module, scales: Mapping[Part, str]) -> float:
    """Measures how far a recorded step's gradients are from those of the plain model whose last layers of branches, the
    keys of ``scales``, are multiplied by the parameters that the values name: by channel, or by one number."""
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    unscaled = {
        name: parameter.detach().double().clone() for name, parameter in filled(plain, values).named_parameters()
    }
    factors = {end: values.get(name, torch.ones(())).double().flatten() for end, name in scales.items()}
    with torch.no_grad():
        for end, factor in factors.items():
            weight_matrix(end.module).mul_(factor[:, None])
            if isinstance(end.module.bias, Tensor):
                end.module.bias.mul_(factor)
    gradients = gradients_of(recording, trace, plain)
    of_scales: dict[str, Tensor] = {}
    for end, factor in factors.items():
        rows, bias = matrix_gradient(plain, end.path, gradients), f"{end.path}.bias"
        by_channel = (rows * matrix_gradient(plain, end.path, unscaled)).sum(1)
        rows.mul_(factor[:, None])
        if bias in gradients:
            by_channel += gradients[bias] * unscaled[bias]
            gradients[bias].mul_(factor)
        own = by_channel if len(factor) == len(by_channel) else by_channel.sum().view(1)
        of_scales[scales[end]] = of_scales.get(scales[end], torch.zeros(())) + own
    expected = {theirs: gradients[name] for name, theirs in names_in(plain, ours).items()}
    there = {name: scale.reshape(ours[name].shape) for name, scale in of_scales.items() if name in ours}
    return apart(ours, expected | there)
