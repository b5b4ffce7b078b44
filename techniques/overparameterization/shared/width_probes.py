"""Checks what a recorded run's first step shows of wider MLPs: for the probes of those who make them (`width`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy, is_transposed
from suite.reading.recording import Recording
from techniques.shared.plain import plain_model


def shows(recording: Recording, times: int) -> dict[str, float]:
    """Computes ``neurons``: in the MLPs, over the plain model's, at the first step; ``changed``: numbers of the plain
    model that are not there at the start, outgoing weights divided by the root of ``times``; ``repeated``: neurons with
    the incoming weights of another; ``off_spread``: how far the spread of a layer's new weights is from the old ones',
    at most, of these; ``at_rest``: parameters of MLPs with a gradient that the middle step left alone."""
    plain, first, half = plain_model(recording), recording.traces[0], recording.run.recipe.steps // 2
    trace = next((trace for trace in recording.traces if trace.step == half), recording.trace)
    ours, theirs = first.before.parameters, {name: parameter.detach() for name, parameter in plain.named_parameters()}
    incoming, outgoing = _layers(plain)
    changed = repeated = neurons = 0
    spreads = [1.0]
    for name, old in theirs.items():
        new, path = ours[name], name.rpartition(".")[0]
        if path in incoming:
            neurons += oriented(plain, name, new).shape[0] if name.endswith("weight") else 0
        if path not in incoming and (path not in outgoing or not name.endswith("weight")):
            changed += _different(new, old)
            continue
        rows, own = oriented(plain, name, new), oriented(plain, name, old)
        if path in outgoing:
            rows, own = rows.T, own.T / math.sqrt(times)
        changed += _different(rows[: len(own)], own)
        if rows.ndim == 2 and len(rows) > len(own):
            spreads.append((rows[len(own) :].double().square().mean() / own.double().square().mean()).sqrt().item())
            repeated += len(rows) - len(rows.unique(dim=0)) if path in incoming else 0
    before = sum(oriented(plain, f"{path}.weight", theirs[f"{path}.weight"]).shape[0] for path in incoming)
    names = [name for name in trace.of("backward")[0].gradients if name in of_mlps(plain)]
    return {
        "neurons": neurons / before,
        "changed": changed,
        "repeated": repeated,
        "off_spread": max(abs(spread - 1) for spread in spreads),
        "at_rest": sum(not trace.update.moved(name).any() for name in names),
    }


def distance_off(recording: Recording, told: float) -> float:
    """Computes how far ``told`` is from the mean of ||W - W_0|| / ||W_0|| over the MLPs' matrices, of which W_0 is what
    the first recorded step began with, relative to that."""
    start, now = recording.traces[0].before.parameters, dict(recording.run.model.named_parameters())
    names = [name for name in of_mlps(plain_model(recording)) if start[name].ndim == 2]
    ratios = [
        ((now[name].double() - start[name].double()).norm() / start[name].double().norm()).item() for name in names
    ]
    return abs(told / (sum(ratios) / len(ratios)) - 1)


def of_mlps(plain: nn.Module) -> list[str]:
    """Lists the names of the parameters of the MLPs' layers."""
    paths = set.union(*_layers(plain))
    return [name for name, _ in plain.named_parameters() if name.rpartition(".")[0] in paths]


def _layers(plain: nn.Module) -> tuple[set[str], set[str]]:
    """Returns the layers that make the MLPs' neurons, and those that join them."""
    blocks = anatomy(plain).every_block
    outgoing = {block.mlp_output.path for block in blocks if block.mlp_output}
    return {part.path for block in blocks for part in block.mlp_linears} - outgoing, outgoing


def oriented(plain: nn.Module, name: str, value: Tensor) -> Tensor:
    """Returns a weight as [out_features, in_features]; a bias as it is."""
    return value.T if value.ndim == 2 and is_transposed(plain.get_submodule(name.rpartition(".")[0])) else value


def _different(ours: Tensor, expected: Tensor) -> int:
    """Counts numbers that differ by more than a rounding."""
    if ours.shape != expected.shape:
        return expected.numel()
    return int(((ours.double() - expected.double()).abs() > torch.finfo(torch.float32).eps * expected.abs()).sum())
