"""Implements classical methods that a reference must beat, or it has learned nothing that needs a Transformer.

Each is fitted to a baseline's training examples and gives outputs for a batch as the model does, so both are scored by
the same losses and metrics on the same test batches, masks and noise included.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from suite.loop.data import Batch

DISCOUNT = 0.75  # of absolute discounting, as Kneser and Ney's experiments have it
PRIOR_COUNTS = 5.0  # what the next shorter context weighs, in observations
LARGEST_VOCABULARY = 2048  # tables of pairs are dense
COMPONENTS = (4, 8, 16, 32)  # of the principal component analysis; validation chooses
RIDGES = (0.001, 0.01, 0.1)  # of linear regression, in squared pixels; validation chooses
LARGEST_REGRESSED = 256  # pixels a picture: all pixels on all others, for every mask anew
NEIGHBOURS = 8
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
POOLED_SIDE = 8  # of the pictures that logistic regression sees; the digits' own
NEVER = -100.0  # the logit of a class that no training example has

Floats = NDArray[np.float64]


def counted(keys: NDArray[np.int64], tokens: NDArray[np.int64], rows: int, vocabulary: int) -> Any:
    """Counts how often each token came with each key: a sparse matrix [rows, vocabulary]."""
    ones = np.ones(len(keys), dtype=np.float64)
    return sparse.csr_matrix((ones, (keys, tokens)), shape=(rows, vocabulary))


class KneserNey:
    """Implements interpolated Kneser-Ney (Kneser & Ney 1995; Chen & Goodman 1998, section 3): each token from the
    ``order`` - 1 before it.

    Shorter contexts count in how many longer ones a token was seen, not how often. A context never leaves its row.
    """

    def __init__(self, rows: Tensor, vocabulary: int, order: int) -> None:
        self.vocabulary = vocabulary
        tokens = rows.numpy().astype(np.int64)
        contexts = tokens.shape[1] - order + 1
        windows = [tokens[:, start : start + contexts].ravel() for start in range(order)]
        key = np.zeros_like(windows[0])
        for window in windows[:-1]:
            key = key * vocabulary + window
        tables = [counted(key, windows[-1], vocabulary ** (order - 1), vocabulary)]
        for length in range(order - 2, -1, -1):
            seen = tables[-1].tocoo()
            tables.append(counted(seen.row % vocabulary**length, seen.col, vocabulary**length, vocabulary))
        self.tables = tables[::-1]  # by the context's length, from 0

    def __call__(self, batch: Batch) -> Any:
        tokens = batch["input_ids"].numpy()
        probabilities = np.full((*tokens.shape, self.vocabulary), 1 / self.vocabulary)
        context = np.zeros_like(tokens)  # the last ``length`` tokens as one number
        for length, table in enumerate(self.tables):
            if length:
                context[:, length - 1 :] += tokens[:, : tokens.shape[1] - length + 1] * self.vocabulary ** (length - 1)
            reached = probabilities[:, max(0, length - 1) :]
            counts = table[context[:, max(0, length - 1) :].ravel()].toarray()
            reached[:] = _interpolated(counts, reached.reshape(-1, self.vocabulary)).reshape(reached.shape)
        return SimpleNamespace(logits=torch.from_numpy(np.log(probabilities)))


def _interpolated(counts: Floats, shorter: Floats) -> Floats:
    """Returns discounted counts [contexts, vocabulary] with what is discounted given to the shorter contexts'
    distribution."""
    total = counts.sum(axis=1, keepdims=True)
    mass = np.maximum(counts - DISCOUNT, 0)
    left = np.where(total > 0, total - mass.sum(axis=1, keepdims=True), 1.0)  # an unseen context gives all of it away
    mixed: Floats = (mass + left * shorter) / np.where(total > 0, total, 1.0)
    return mixed


class Unigram:
    """Predicts by how frequent each token is: the plateau that a masked language model first comes to."""

    def __init__(self, rows: Tensor, vocabulary: int) -> None:
        counts = np.bincount(rows.numpy().astype(np.int64).ravel(), minlength=vocabulary) + 1.0
        self.probabilities: Floats = counts / counts.sum()

    def __call__(self, batch: Batch) -> Any:
        log = torch.from_numpy(np.log(self.probabilities))
        return SimpleNamespace(logits=log.expand(*batch["input_ids"].shape, -1))


class Neighbours:
    """Predicts each token from its left and right neighbour, or from the one that is not masked.

    Counts of a token between two neighbours, smoothed by PRIOR_COUNTS observations of p(w|l) p(w|r) / p(w), the two
    taken as independent; each of these smoothed by the token's frequency.
    """

    def __init__(self, rows: Tensor, vocabulary: int, mask: int) -> None:
        tokens = rows.numpy().astype(np.int64)
        left, middle, right = (tokens[:, start : tokens.shape[1] - 2 + start].ravel() for start in range(3))
        self.vocabulary, self.mask = vocabulary, mask
        self.alone = Unigram(rows, vocabulary).probabilities
        self.after = self._smoothed(counted(left, middle, vocabulary, vocabulary).toarray(), self.alone)
        self.before = self._smoothed(counted(right, middle, vocabulary, vocabulary).toarray(), self.alone)
        self.between = counted(left * vocabulary + right, middle, vocabulary**2, vocabulary)

    def __call__(self, batch: Batch) -> Any:
        tokens = batch["input_ids"].numpy()
        masked = np.full((len(tokens), 1), self.mask)
        left = np.hstack([masked, tokens[:, :-1]]).ravel()
        right = np.hstack([tokens[:, 1:], masked]).ravel()
        of_left = np.where((left == self.mask)[:, None], self.alone, self.after[left])
        of_right = np.where((right == self.mask)[:, None], self.alone, self.before[right])
        independent = of_left * of_right / self.alone
        independent /= independent.sum(axis=1, keepdims=True)
        both = (left != self.mask) & (right != self.mask)
        counts = self.between[left * self.vocabulary + right].toarray() * both[:, None]
        log = np.log(self._smoothed(counts, independent))
        return SimpleNamespace(logits=torch.from_numpy(log.reshape(*tokens.shape, self.vocabulary)))

    @staticmethod
    def _smoothed(counts: Floats, prior: Floats) -> Floats:
        mixed: Floats = (counts + PRIOR_COUNTS * prior) / (counts.sum(axis=1, keepdims=True) + PRIOR_COUNTS)
        return mixed


class LogisticRegression:
    """Fits multinomial logistic regression on ``features`` of a batch, float [batch, features]; of STRENGTHS, the
    penalty's inverse, the one of least cross-entropy on the validation batch."""

    def __init__(self, features: Callable[[Batch], Tensor], training: Batch, validation: Batch) -> None:
        from sklearn.linear_model import LogisticRegression as Fit

        self.features = features
        inputs, labels = self._inputs(training), training["labels"].numpy()
        self.fits = [Fit(C=strength, max_iter=1000).fit(inputs, labels) for strength in STRENGTHS]
        self.fit = min(self.fits, key=lambda fit: self._loss(fit, validation))

    def __call__(self, batch: Batch) -> Any:
        return SimpleNamespace(logits=self._logits(self.fit, batch))

    def _loss(self, fit: Any, batch: Batch) -> float:
        return F.cross_entropy(self._logits(fit, batch), batch["labels"]).item()

    def _logits(self, fit: Any, batch: Batch) -> Tensor:
        classes = max(int(fit.classes_.max()), int(batch["labels"].max())) + 1
        logits = torch.full((len(batch["labels"]), classes), NEVER, dtype=torch.float64)
        logits[:, fit.classes_] = torch.from_numpy(fit.predict_log_proba(self._inputs(batch)))
        return logits

    def _inputs(self, batch: Batch) -> Floats:
        return self.features(batch).double().numpy()


def grey_pixels(batch: Batch) -> Tensor:
    """Returns the batch's pictures in grey, averaged down to POOLED_SIDE pixels a side: [batch, features]."""
    grey = batch["pixel_values"].float().mean(1, keepdim=True)
    return F.adaptive_avg_pool2d(grey, POOLED_SIDE).flatten(1)


class Completion(Protocol):
    """Completes pictures from what is visible of them."""

    def __call__(self, pictures: Tensor, visible: Tensor) -> Tensor:
        """Returns pictures float64 [batch, features], given where ``visible`` (1 or 0, [batch, features]) is 1."""


class PrincipalComponents:
    """Describes pictures [examples, ...] as a Gaussian: the directions in which they vary, and how much in each."""

    def __init__(self, pictures: Tensor) -> None:
        flat = pictures.double().flatten(1)
        self.mean = flat.mean(0)
        _, scales, self.directions = torch.linalg.svd(flat - self.mean, full_matrices=False)
        self.variances = scales.square() / len(flat)

    def completing(self, components: int, noise: float | None = None) -> Completion:
        """Finds the most probable pictures if ``components`` directions vary as seen and all others by ``noise`` (their
        mean variance if None; Tipping & Bishop 1999). None of them: the mean picture. All: linear regression of what is
        hidden on what is visible, with a ridge of ``noise``."""
        directions, own = self.directions[:components], self.variances[:components].clamp(min=1e-12)
        rest = self.variances[components:]
        floor = noise if noise is not None else max(float(rest.sum()) / max(1, len(self.mean) - components), 1e-9)

        def completed(pictures: Tensor, visible: Tensor) -> Tensor:
            flat, visible = (pictures.double().flatten(1) - self.mean) * visible, visible.double()
            products = torch.einsum("kf,bf,jf->bkj", directions, visible, directions)
            weights = torch.linalg.solve(products + torch.diag(floor / own), flat @ directions.T)
            return weights @ directions + self.mean

        return completed


def nearest_neighbours(pictures: Tensor, neighbours: int) -> Completion:
    """Completes with the mean of the ``neighbours`` pictures [examples, ...] that are nearest in what is visible."""
    known = pictures.double().flatten(1)

    def completed(pictures: Tensor, visible: Tensor) -> Tensor:
        shown = pictures.double().flatten(1) * visible
        # |x - k|^2 over what is visible, without |x|^2, which is the same for all k
        distance = visible.double() @ known.square().T - 2 * shown @ known.T
        return known[distance.topk(neighbours, largest=False).indices].mean(1)

    return completed
