"""Implements S2ViTE: whole attention heads and MLP neurons that come and go, in place of single connections.

Chen et al. (NeurIPS 2021, arXiv 2106.04533), the structured form; ``structure_new`` of the authors' dst_utils/core.py:

    head      goes by |sum A dL/dA|, the mean over the batch    grows by ||dL/dA||_1        A: what the head gives
    neuron    goes by ||w_in||_1 + ||w_out||_1                  grows by the same norms of the dense gradients

A head that is off has no rows in the layers of its query, key and value, and so gives zero; the layer that joins the
heads keeps its columns, through which its gradient comes. A neuron that is off has neither rows nor columns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act
from suite.model.anatomy import Part, anatomy, innermost, is_transposed, out_features
from suite.model.pruning import Units, attention_heads, keep, mlp_neurons
from techniques.shared.sparse.masks import MASK, attach, prunable, rewire
from techniques.shared.sparse.topology import moved_topology, random_mask


def head_scores(output: Tensor, gradient: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Computes what ``count`` heads are worth that are on, and what those would be that are off, both [count]: by the
    heads' outputs, [batch, ..., columns], each head's columns after those of the one before, and by their gradient."""
    first_order, slope = (
        tensor.float().unflatten(-1, (count, -1)).movedim(-2, 1).flatten(2) for tensor in (output * gradient, gradient)
    )
    return first_order.sum(2).abs().mean(0), slope.abs().sum(2).mean(0)


@dataclass(frozen=True)
class Structure:
    """Holds the heads and neurons of a model that has masks beside its weights; ``seen`` are heads' scores by joint."""

    heads: tuple[Units, ...]
    neurons: tuple[Units, ...]
    seen: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    scored: Act = field(default_factory=lambda: Act(due="run"))

    @classmethod
    def on(cls, model: nn.Module, run: Run, sparsity: float) -> Structure:
        """Masks that share of each attention's heads and of each MLP's neurons, at random.

        Raises ValueError where none would go, or none stay.
        """
        parts, forward = anatomy(model), partial(run.trial, model)
        own = cls(tuple(attention_heads(parts, forward)), tuple(mlp_neurons(parts, forward)))
        masks = {
            part.path: torch.ones_like(_layer(model, part.path).weight, dtype=torch.bool) for part in prunable(model)
        }
        for units in own.units:
            draw = random_mask(torch.Size([units.count]), 1 - sparsity, run.generator)
            if draw.all() or not draw.any():
                raise ValueError(
                    f"a sparsity of {sparsity} leaves {int(draw.sum())} of the {units.count} units that {units.joint} "
                    "joins: give one with which at least one goes and one stays"
                )
            masks |= own.masks(model, units, draw)
        for path, mask in masks.items():
            attach(_layer(model, path), mask)
        own.silence(model)
        return own

    @property
    def units(self) -> tuple[Units, ...]:
        return self.heads + self.neurons

    def masks(self, model: nn.Module, units: Units, on: Tensor) -> dict[str, Tensor]:
        """Returns the masks by layer, of the weights' shapes, with which the units ``on`` [count] are on and no
        others."""
        masks = {}
        for path, rows in units.rows.items():
            layer = _layer(model, path)
            masks[path] = torch.ones_like(layer.weight, dtype=torch.bool)
            for unit in (~on).nonzero()[:, 0].tolist():
                turned(layer, masks[path])[list(rows[unit])] = False
        if units in self.neurons:
            joint = _layer(model, units.joint)
            masks[units.joint] = torch.ones_like(joint.weight, dtype=torch.bool)
            turned(joint, masks[units.joint])[:, ~on.repeat_interleave(units.size)] = False
        return masks

    def unit_mask(self, model: nn.Module, units: Units) -> Tensor:
        """Tells which units are on, bool [count]."""
        path, rows = next(iter(units.rows.items()))
        layer = _layer(model, path)
        return turned(layer, getattr(layer, MASK))[[own[0] for own in rows], 0]

    @torch.no_grad()
    def silence(self, model: nn.Module) -> None:
        """Zeros the biases of heads that are off, with which they would give a constant, and their gradients."""
        for bias, stays in self._biases(model):
            bias.mul_(stays)
            if bias.grad is not None:
                bias.grad.mul_(stays)

    def _biases(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yields the biases of queries, keys and values, and which of their entries are of heads that are on."""
        for units in self.heads:
            for layer in (_layer(model, path) for path in units.rows):
                if layer.bias is not None:
                    yield layer.bias, turned(layer, getattr(layer, MASK))[:, 0]

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """While active, a backward pass leaves the scores of all heads."""

        def watch(units: Units, _: nn.Module, args: tuple[Any, ...]) -> None:
            output = args[0]
            if output.requires_grad:
                output.register_hook(partial(note, units, output.detach()))

        def note(units: Units, output: Tensor, gradient: Tensor) -> None:
            self.seen[units.joint] = head_scores(output, gradient, units.count)
            self.scored()

        hooks = [_layer(model, units.joint).register_forward_pre_hook(partial(watch, units)) for units in self.heads]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def move(self, run: Run, dense: Mapping[nn.Parameter, Tensor], share: float) -> None:
        """Turns that ``share`` of each layer's units off, rounded up, and as many on, from zero. ``dense`` are the
        gradients of all weights. Layers that no example came by stay."""
        model = run.model
        for units in self.units:
            if units in self.heads:
                scores = self.seen.pop(units.joint, None)
            elif _layer(model, units.joint).weight in dense:
                scores = self.norms(model, units, lambda weight: weight), self.norms(model, units, dense.__getitem__)
            else:
                scores = None
            if scores:
                unit_mask = self.unit_mask(model, units)
                new = moved_topology(*scores, unit_mask, math.ceil(share * int(unit_mask.sum())))
                self.turn(run, units, unit_mask & new, new)

    def turn(self, run: Run, units: Units, stay: Tensor, on: Tensor) -> None:
        """Makes ``on`` [count] the units that are on; all but those that ``stay`` start from zero."""
        staying = self.masks(run.model, units, stay)
        for path, mask in self.masks(run.model, units, on).items():
            layer = _layer(run.model, path)
            rewire(run, layer.weight, getattr(layer, MASK), staying[path], mask)
            if units in self.heads and layer.bias is not None:
                rows = turned(layer, staying[path])[:, 0]
                rewire(run, layer.bias, rows, rows, rows)

    def norms(self, model: nn.Module, units: Units, of: Callable[[nn.Parameter], Tensor]) -> Tensor:
        """Computes L1 norms of what ``of`` gives for the weights of each unit, its columns in the joint included,
        [count]."""
        joint = _layer(model, units.joint)
        total = turned(joint, of(joint.weight)).abs().sum(0).unflatten(0, (units.count, -1)).sum(1)
        for path, rows in units.rows.items():
            layer = _layer(model, path)
            of_rows = turned(layer, of(layer.weight)).abs().sum(1)
            total += of_rows[torch.tensor(rows, device=of_rows.device)].sum(1)
        return total

    def pruned(self, model: nn.Module) -> nn.Module:
        """Makes a copy without the units that are off: smaller matrices, and the same outputs."""
        small = copy.deepcopy(model)
        for units in self.units:
            keep(small, units, self.unit_mask(model, units).nonzero()[:, 0].tolist())
        for module in small.modules():
            module._buffers.pop(MASK, None)
        return small

    def share(self, model: nn.Module) -> float:
        """Computes the share of the units' weights that are on, the columns of heads in the layers that join them
        included."""
        on = of_all = 0
        for units in self.units:
            weights = units.size * out_features(_layer(model, units.joint))
            weights += sum(
                len(rows[0]) * turned(_layer(model, path), _layer(model, path).weight).shape[1]
                for path, rows in units.rows.items()
            )
            on += weights * int(self.unit_mask(model, units).sum())
            of_all += weights * units.count
        return on / of_all


def _layer(model: nn.Module, path: str) -> Any:
    return innermost(Part(path, model.get_submodule(path))).module


def turned(layer: nn.Module, weight: Tensor) -> Tensor:
    """Returns a tensor of the weight's shape as [out, in], or back."""
    return weight.T if is_transposed(layer) else weight
