"""Measures the tail of the gradient noise that clipping is for, by model; beside the learning rates that the card asks
for.

Noise: ||g_i - mean g|| over many small batches (the recipe's) of one fixed model, half-way through its training and
without dropout. Zhang et al. (arXiv 1912.03194), figure 1, find it heavy-tailed in BERT and nearly Gaussian in a
ResNet; here the three baselines stand beside a plain network on the ViT's images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import Job
from suite.topics.studies.lab import Lab, StudyTable
from suite.topics.studies.rate_grid import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = 200
WIDTH = 256  # of the plain network's two hidden layers
TAIL = 0.1  # share of the largest norms that the Hill index reads
SHARES = (0.9, 0.75, 0.5, 0.35, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.03, 0.02, 0.01)
NOISE = "Norms of the gradient noise; a heavier tail has a larger kurtosis (the Gaussian's is 3), a smaller Hill index"
SURVIVAL = "The norm, in its median, that a share of the batches exceeds"


@dataclass
class PlainNetwork(Technique):
    """Puts a multi-layer perceptron in the place of the ViT: the same images, recipe and steps."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        inputs = run.data.batch(0, 0, 1)[0]["pixel_values"].numel()
        classes = int(run.data.train.tensors["labels"].max()) + 1
        hidden = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, classes))

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"network": run.model}


MODELS = {"bert": "bert", "gpt": "gpt", "vit": "vit", "mlp": "vit"}  # and the baseline that has the data


def study(lab: Lab, batches: int = BATCHES) -> list[StudyTable]:
    """Returns the tables ``noise``, a row for each model, and ``survival``, a column for each; these runs are not
    recorded."""
    norms: dict[str, Tensor] = {}
    for number, (name, baseline) in enumerate(MODELS.items()):
        lab.progress(number / len(MODELS), f"the gradient noise of {name}")
        stack = Stack({name: PlainNetwork()} if name == "mlp" else {})
        run = run_of(Job(setting=lab.setting.but(baseline=baseline)), technique=stack)
        run.train(run.recipe.steps // 2)
        norms[name] = noise(run, batches)
    rows = [(name, batches, norm.quantile(0.5).item(), kurtosis(norm), hill(norm)) for name, norm in norms.items()]
    shares = torch.tensor(SHARES, dtype=torch.float64)
    levels = [(norm.quantile(1 - shares) / norm.quantile(0.5)).tolist() for norm in norms.values()]
    return [
        StudyTable("noise", ("model", "batches", "median_norm", "kurtosis", "hill_index"), rows, NOISE),
        StudyTable("survival", ("share_above", *norms), list(zip(SHARES, *levels, strict=True)), SURVIVAL),
    ]


def noise(run: Run, batches: int) -> Tensor:
    """Computes ||g_i - mean g|| of the run's model, float64 [batches]; the mean is over the same batches, passed
    twice."""
    run.model.eval()
    parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]

    def gradient(number: int) -> Tensor:
        batch, _ = run.data.batch(0, number * run.recipe.batch_size, run.recipe.batch_size)
        loss = run.forward({name: tensor.to(run.device) for name, tensor in batch.items()})
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients])

    mean = gradient(0)
    for number in range(1, batches):
        mean += gradient(number)
    mean /= batches
    norms = [(gradient(number) - mean).norm().item() for number in range(batches)]
    return torch.tensor(norms, dtype=torch.float64)


def kurtosis(values: Tensor) -> float:
    """Computes the fourth central moment over the squared second: 3 for a Gaussian."""
    squares = (values - values.mean()).square()
    return (squares.square().mean() / squares.mean().square()).item()


def hill(values: Tensor, tail: float = TAIL) -> float:
    """Computes Hill's estimate of a in P(X > x) ~ x^-a, from the largest values (Hill, Annals of Statistics 3,
    1975)."""
    count = max(1, round(tail * len(values)))
    largest = values.topk(count + 1).values
    return 1 / (largest[:-1] / largest[-1]).log().mean().item()


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws final loss over the learning rate; and the share of batches over the norm of their noise."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, tables[0])
    survival = tables[-1]
    shares, *levels = zip(*survival.rows, strict=True)
    for name, level in zip(survival.columns[1:], levels, strict=True):
        right.loglog(level, shares, marker="o", label=name)
    right.set(xlabel="norm of the gradient noise (of its median)", ylabel="share of batches above")
    right.legend()
    return figure
