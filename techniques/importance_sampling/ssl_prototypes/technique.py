"""Implements self-supervised prototypes: train only on the examples that are least like the prototypes of the data.

Sorscher, Geirhos, Shekhar, Ganguli & Morcos, "Beyond neural scaling laws: beating power law scaling via data pruning"
(NeurIPS 2022, arXiv 2206.14486), section 5:

    1  embed the examples by a model that was trained without labels
    2  cluster the embeddings by k-means; the centroids are prototypes
    3  an example's difficulty is its cosine distance to the nearest prototype
    4  keep the hardest where examples are abundant, the easiest where they are scarce
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor

from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.loop.baseline import Baseline
from suite.loop.data import Data, Examples, generator, mixed_seed
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.embedding import embedded
from suite.record.job import BaselineName, Job, Size, Split
from techniques.importance_sampling.shared.data_pruning import DataPruning, highest, share_of

LABELS = "labels"
STARTS = 10  # of k-means; the best of them counts
MOST_ITERATIONS = 1000


def prototypes(embeddings: Tensor, clusters: int, seed: int) -> Tensor:
    """Computes the centroids [clusters, width] of k-means on ``embeddings`` float64 [examples, width], iterated until
    no example changes its cluster. One thread: several add up in any order."""
    means = KMeans(clusters, n_init=STARTS, max_iter=MOST_ITERATIONS, tol=0.0, random_state=seed % 2**32)
    with threadpool_limits(1):
        return torch.from_numpy(means.fit(embeddings.numpy()).cluster_centers_)


def difficulties(embeddings: Tensor, prototypes: Tensor) -> Tensor:
    """Computes the cosine distance, in [0, 2], of each of ``embeddings`` [examples, width] to its nearest prototype."""
    return 1 - (F.normalize(embeddings, dim=1) @ F.normalize(prototypes, dim=1).T).amax(1)


def balanced(ranking: Tensor, classes: Tensor, keep: float, balance: float) -> Tensor:
    """Returns the ascending indices of the share ``keep`` with the highest ``ranking`` [examples], where every one of
    ``classes`` int64 [examples] keeps at least ``balance`` of what it would keep if all kept the same share."""
    floor = torch.zeros(len(ranking), dtype=torch.bool)
    for label in classes.unique():
        own = (classes == label).nonzero()[:, 0]
        floor[own[highest(ranking[own], int(balance * keep * len(own)))]] = True
    before_all_others = ranking.max() - ranking.min() + 1
    return highest(ranking + floor * before_all_others, share_of(len(ranking), keep))


@dataclass
class SslPrototypes(DataPruning):
    """Reads ``embedder``: the baseline that learns to embed, without labels, for ``scout`` of its own recipe's steps
    (as many times as many as the run has of its own). ``clusters``: of k-means. ``balance``: see :func:`balanced`; 0
    needs no labels."""

    keep: float = 0.8
    shorter: bool = True
    clusters: int = 10
    embedder: BaselineName = "mae"
    scout: float = 1.0
    balance: float = 0.0

    centroids: Tensor = field(init=False, repr=False, default_factory=lambda: torch.empty(0, 0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters < 1:
            raise ValueError(f"clusters is the number of prototypes, 1 or more, not {self.clusters}")
        if not self.scout > 0:
            raise ValueError(f"scout multiplies the steps of the embedder's training and is positive, not {self.scout}")
        if not 0 <= self.balance <= 1:
            raise ValueError(
                f"balance is a share of what equal pruning keeps of a class, in [0, 1], not {self.balance}"
            )

    def score(self, pool: Data, run: Run) -> Tensor:
        if self.clusters > len(pool.train):
            raise ValueError(
                f"ssl_prototypes has {self.clusters} prototypes for {len(pool.train)} examples: set clusters to fewer, "
                "or train for longer"
            )
        embeddings = self.embeddings(pool, run)
        self.centroids = prototypes(embeddings, self.clusters, mixed_seed(run.seed, 7))
        return difficulties(embeddings, self.centroids)

    def embeddings(self, pool: Data, run: Run) -> Tensor:
        """Computes the embeddings of the training examples of ``pool``, float64 [examples, width], by a model trained
        on them."""
        own = self._embedder(pool, run)
        own.train(own.recipe.steps)
        size, transform = own.recipe.batch_size, own.data.test_transform or own.data.transform
        parts = []
        for start in range(0, len(pool.train), size):
            rows = torch.arange(start, min(start + size, len(pool.train)))
            examples = transform(own.data.train[rows], generator(own.seed, start))
            batch = {name: tensor.to(own.device) for name, tensor in examples.items()}
            parts.append(embedded(own.model, partial(own.baseline.forward, own.model, batch)).cpu())
        return torch.cat(parts).double()

    def _embedder(self, pool: Data, run: Run) -> Run:
        """Returns the embedder's run, before its first step."""
        assert self.reference is not None
        setting = run.job.setting
        same = self.embedder == run.baseline.id
        recipe = "modern" if setting.recipe == "compiled" else setting.recipe
        theirs = setting.but(
            baseline=self.embedder, recipe=recipe, task="pretrain", rate=1.0, model=setting.model if same else None
        )
        baseline = without_labels(run.baseline if same else baseline_of(theirs), pool)
        longer = self.reference.steps / run.baseline.recipe(setting.size, setting.recipe, setting.task).steps
        steps = baseline.recipe(theirs.size, theirs.recipe, theirs.task).steps
        theirs = theirs.but(steps=max(1, round(self.scout * longer * steps)))
        try:
            own = run_of(Job(setting=theirs, seed=mixed_seed(run.seed, 4)), technique=Stack({}), baseline=baseline)
            own.next_batch()
        except KeyError as missing:
            raise ValueError(
                f"ssl_prototypes: {self.embedder} cannot learn from the examples of {run.baseline.id} without "
                f"{missing.args[0]}; name a baseline as embedder that learns from such examples without labels"
            ) from None
        return own

    def chosen(self, ranking: Tensor, pool: Data) -> Tensor:
        if not self.balance:
            return super().chosen(ranking, pool)
        classes = pool.train.tensors.get(LABELS)
        if classes is None:
            raise ValueError("ssl_prototypes: these examples have no classes to balance; leave balance at 0")
        return balanced(ranking, classes, self.keep, self.balance)


def without_labels(baseline: Baseline, pool: Data) -> Baseline:
    """Returns the baseline with the training examples of ``pool``, their labels left out."""
    unlabelled = Examples({name: tensor for name, tensor in pool.train.tensors.items() if name != LABELS})

    def data(size: Size, split: Split, location: str | None = None) -> Data:
        return replace(whole.data(size, split, location), train=unlabelled)

    whole, few = baseline, copy.copy(baseline)
    few.data = data  # type: ignore[method-assign]
    return few
