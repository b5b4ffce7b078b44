"""Implements intrinsic dimension (Aghajanyan, Zettlemoyer & Gupta, ACL 2021, arXiv 2012.13255): fine-tuning in a random
subspace.

    DID    theta = theta_0 + P z                    d numbers z, from 0; P random and fixed
    SAID   theta_i = theta_0,i + lambda_i P_i z     with a scale, from 1, for each of m layers i, and d - m numbers z

P is a Fastfood transform (Le, Sarlos & Smola, ICML 2013), whose columns have the expected length 1: with random signs
B, a permutation Pi, normal numbers G and the Walsh-Hadamard matrix H, all of size n, the smallest power of 2 that is at
least D and d,

    P = H G Pi H B / sqrt(D sum of G^2)             the first D rows, of a tensor of D numbers, and d columns
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from techniques.fine_tuning.intrinsic_dim.hadamard import walsh_hadamard
from techniques.fine_tuning.shared.frozen import freeze, new_heads

SUBSPACE = "intrinsic_subspace"  # what the model calls it


def fastfood(z: Tensor, signs: Tensor, places: Tensor, gains: Tensor, size: int) -> Tensor:
    """Computes P z, float32 [``size``], for z [d], ``signs`` B [d] and ``gains`` G [n].

    The transform of d numbers and then zeros repeats itself with the period k, the power of 2 that d needs: so the
    first transform is of k numbers, and ``places`` [n], each below k, is Pi modulo k.
    """
    spread = walsh_hadamard(F.pad(signs * z, (0, padded(len(z)) - len(z))))
    mixed = walsh_hadamard(gains * spread.index_select(0, places))
    return mixed[:size] / (size * gains.square().sum()).sqrt()


def padded(count: int) -> int:
    """Returns the smallest power of 2 that is at least ``count``, which is positive."""
    return 1 << (count - 1).bit_length()


class Subspace(nn.Module):
    """Holds what is trained: ``z`` [d], and ``scales`` [m] where layers have their own."""

    def __init__(self, dimension: int, layers: int, like: Tensor) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.zeros(dimension - layers, device=like.device))
        if layers:
            self.scales = nn.Parameter(torch.ones(layers, device=like.device))


class Projected(nn.Module):
    """Acts as a parametrization: a tensor theta_0 becomes theta_0 + lambda P z. ``layer`` is that of its scale, or
    None.

    P is drawn from ``generator`` and is no part of the state: who has the seed has it.
    """

    def __init__(self, like: Tensor, subspace: Subspace, layer: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.shared, self.layer = (subspace,), layer  # in a tuple: the model has it once
        count = len(subspace.z)
        n = padded(max(count, like.numel()))
        signs = 2 * torch.randint(2, (count,), generator=generator, dtype=torch.int8) - 1
        places = torch.randperm(n, generator=generator) % padded(count)
        gains = torch.randn(n, generator=generator)
        self.register_buffer("signs", signs.to(like.device), persistent=False)
        self.register_buffer("places", places.int().to(like.device), persistent=False)
        self.register_buffer("gains", gains.to(like.device), persistent=False)

    def forward(self, initial: Tensor) -> Tensor:
        (subspace,) = self.shared
        moved = fastfood(subspace.z, self.signs, self.places, self.gains, initial.numel())  # type: ignore[arg-type]
        if self.layer is not None:
            moved = subspace.scales[self.layer] * moved
        return initial + moved.view(initial.shape).to(initial.dtype)


def project(model: nn.Module, dimension: int, structure_aware: bool, generator: torch.Generator) -> Subspace:
    """Freezes ``model``, in place, and moves all that was trainable, but a new task's output layer, in one subspace of
    ``dimension``. A parameter that stands in several places is one. Raises ValueError where the subspace does not fit.
    """
    parts = anatomy(model)
    blocks = [f"{block.path}." for block in parts.every_block]
    heads = {id(parameter) for head in new_heads(parts) for parameter in head.module.parameters()}
    trained = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in heads
    }
    numbers = sum(parameter.numel() for parameter in trained.values())
    layers = len(blocks) if structure_aware else 0
    if not layers < dimension <= numbers:
        raise ValueError(
            f"a subspace of dimension {dimension} does not fit: more than the {layers} scales of layers and at most "
            f"the {numbers} numbers that are projected"
        )
    freeze(parts)
    subspace = Subspace(dimension, layers, next(model.parameters()))
    projections: dict[int, Projected] = {}
    for path, parameter in trained.items():
        layer = next((index for index in range(layers) if path.startswith(blocks[index])), None)
        projections[id(parameter)] = Projected(parameter, subspace, layer, generator)
    for module, name, parameter in list(_places(model)):
        if id(parameter) in projections:
            parametrize.register_parametrization(module, name, projections[id(parameter)], unsafe=True)
    _unite_classes(model)
    model.add_module(SUBSPACE, subspace)
    return subspace


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, name, parameter


def _unite_classes(model: nn.Module) -> None:
    """Torch gives each module with a parametrization a class of its own, and blocks are told by having one class: those
    that were of one class, with the same names parametrized, get one again."""
    classes: dict[tuple[object, ...], type] = {}
    for module in model.modules():
        if parametrize.is_parametrized(module):
            design = parametrize.type_before_parametrizations(module), *module.parametrizations  # type: ignore[misc]
            module.__class__ = classes.setdefault(design, type(module))


@dataclass
class IntrinsicDimension(Technique):
    """``dimension`` is d, the scales of layers included where ``structure_aware`` (SAID; else DID).
    ``learning_rate_ratio`` is over the baseline's full fine-tuning: Adam moves a tensor of D numbers by sqrt(D / d)
    times less along d columns of length 1, 2 or 3 times less at the CPU sizes and 24 to 49 at BERT-base."""

    dimension: int = 1000
    structure_aware: bool = True
    learning_rate_ratio: float = 10.0

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ValueError(f"dimension, the numbers to be trained, must be at least 1, not {self.dimension}")
        if not self.learning_rate_ratio > 0:
            raise ValueError(
                f"learning_rate_ratio, over full fine-tuning's rate, must be positive, not {self.learning_rate_ratio}"
            )

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, learning_rate=recipe.learning_rate * self.learning_rate_ratio)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        project(model, self.dimension, self.structure_aware, run.generator)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        blocks = tuple(f"{block.path}." for block in run.anatomy.every_block)
        projections = {
            path: module
            for path, module in run.model.named_modules()
            if isinstance(module, Projected) and path.startswith(blocks)
        }
        return {**projections, **dict(run.model.get_submodule(SUBSPACE).named_parameters(prefix=SUBSPACE))}
