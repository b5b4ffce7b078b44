"""Tells what a short run shows of self-supervised prototypes: embeddings by a model that is trained here once more, the
distances and the centroids in float64, and the examples trained on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.loop.data import Data, Examples, generator, mixed_seed
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.record.job import Job
from techniques.importance_sampling.shared.pruning_probes import candidates_of, shows
from techniques.importance_sampling.ssl_prototypes.technique import SslPrototypes

EPS = torch.finfo(torch.float32).eps
ROUNDINGS = 4  # of float32, of a cosine of size 1, to which roundings of a small angle are of second order


def records(run: Run, own: SslPrototypes) -> bool:
    """Records all steps: what each trained on."""
    return not own.is_reference


@judged(
    "difficulty_roundings",
    "An example's difficulty is the cosine distance of its self-supervised embedding to the nearest prototype.",
    "Section 5",
    id="difficulty",
    at_most=4.0,  # of float32, of a cosine of size 1, to which roundings of a small angle are of second order
)
@judged(
    "centroid_roundings",
    "Prototypes are k-means centroids: each is the mean of the examples that are nearest to it.",
    "Section 5",
    id="prototypes",
    at_most=64.0,  # of float32: of a forward pass and a mean
)
@judged(
    "changed_by_labels",
    "The metric needs no labels: permuting them changes nothing.",
    "Abstract: a self-supervised pruning metric",
    id="no_labels",
    note="balance 0",
)
@judged(
    "changed_by_chance",
    "Embedding and clusters follow from the seed.",
    "This suite's runs are repeatable",
    id="deterministic",
)
@judged(
    "misplaced",
    "Every example that is trained on is among the hardest.",
    "Section 5",
    id="hardest",
    note="order hard, balance 0",
)
@judged(
    "off_steps",
    "The training steps shrink with the examples, rounded up: as many passes over what is kept as the reference makes "
    "over all.",
    "Follows from training for as many epochs",
    id="steps",
    note="shorter=false: as many steps as the reference",
)
def probes(recording: Recording, own: SslPrototypes) -> Mapping[str, float]:
    """Includes those of :func:`techniques.importance_sampling.shared.pruning_probes.shows`. What is changed are
    examples whose difficulty is another, or which are kept in one case alone. For a claim, ``prototypes`` is the
    centroids over those asked for."""
    if own.is_reference or own.saved or own.order == "random":
        return {}
    pool = candidates_of(recording)
    embeddings = _embeddings(recording, own, pool)
    cosines = F.normalize(embeddings, dim=1) @ F.normalize(own.centroids, dim=1).T
    difficulties = 1 - cosines.amax(1)
    ranking = difficulties * (-1 if own.order == "easy" else 1)
    return {
        "difficulty_roundings": (own.scores - difficulties).abs().max().item() / EPS,
        "centroid_roundings": _off_centroids(embeddings, own.centroids),
        "prototypes": len(own.centroids) / own.clusters,
        "changed_by_labels": _changed(recording, own, permuted=True),
        "changed_by_chance": _changed(recording, own, permuted=False),
        **shows(recording, pool, ranking, own.keep, own.shorter, ROUNDINGS * EPS),
    }


def _embeddings(recording: Recording, own: SslPrototypes, pool: Data) -> Tensor:
    """Computes the embeddings of the candidates, float64 [examples, width]: the encoder's last block, all patches
    shown, over its tokens."""
    run = recording.run
    same = own.embedder == run.baseline.id
    at = run.job.setting.but(baseline=own.embedder, model=run.job.setting.model if same else None)
    baseline = copy.copy(run.baseline if same else baseline_of(at))
    plain = baseline.data
    baseline.data = lambda *which: replace(plain(*which), train=pool.train)  # type: ignore[method-assign]
    as_long = run.baseline.recipe_of(run.job.setting).steps / run.baseline.recipe(at.size, at.recipe, at.task).steps
    steps = round(own.scout * as_long * baseline.recipe(at.size, at.recipe, "pretrain").steps)
    embedder = run_of(
        Job(setting=at.but(steps=steps), seed=mixed_seed(run.seed, 4)), technique=Stack({}), baseline=baseline
    )
    embedder.train(steps)
    model = embedder.model.eval().double()
    model.config.mask_ratio = 0.0  # type: ignore[union-attr]
    size, means = embedder.recipe.batch_size, []

    def note(module: object, inputs: object, output: Tensor) -> None:
        means.append(output.mean(1))

    with embedder.anatomy.blocks[-1].module.register_forward_hook(note), torch.no_grad():
        for start in range(0, len(pool.train), size):
            rows = torch.arange(start, min(start + size, len(pool.train)))
            batch = embedder.data.transform(pool.train[rows], generator(embedder.seed, start))
            baseline.forward(model, {name: tensor.double() for name, tensor in batch.items()})
    return torch.cat(means)


def _off_centroids(embeddings: Tensor, centroids: Tensor) -> float:
    """Returns the centroids' error, relative, in roundings; infinite where a centroid is nearest to no example."""
    nearest = torch.cdist(embeddings, centroids).argmin(1)
    farthest = 0.0
    for number, centroid in enumerate(centroids):
        mean = embeddings[nearest == number].mean(0)
        farthest = max(farthest, ((mean - centroid).norm() / centroid.norm()).nan_to_num(nan=torch.inf).item() / EPS)
    return farthest


def _changed(recording: Recording, own: SslPrototypes, permuted: bool) -> int:
    run, setting = recording.run, recording.run.job.setting
    data = run.baseline.data(setting.size, setting.task, setting.data)
    if permuted:
        order = torch.randperm(len(data.train), generator=generator(0))
        labels = data.train.tensors["labels"][order]
        data = replace(data, train=Examples({**data.train.tensors, "labels": labels}))
    again = replace(own)
    again.recipe(run.baseline.recipe_of(setting))
    after, before = (_pictures(data_of_run) for data_of_run in (again.data(data, run), run.data))
    return int((again.scores != own.scores).sum()) + len(after ^ before)


def _pictures(data: Data) -> set[bytes]:
    return {pixel.numpy().tobytes() for pixel in data.train.tensors["pixels"]}
