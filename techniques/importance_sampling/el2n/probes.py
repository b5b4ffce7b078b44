"""What a short run shows of EL2N: the scouts' scores by definition 2.2 in float64, and the examples trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from suite.device.random_state import unchanged_randomness
from suite.loop.data import Data, generator, mixed_seed
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.reading.recording import Recording
from techniques.importance_sampling.el2n.technique import El2n
from techniques.importance_sampling.shared.error_probes import error_norms
from techniques.importance_sampling.shared.pruning_probes import shows
from techniques.shared.scouts import scouts_of

EPS = torch.finfo(torch.float32).eps
ROUNDINGS = 16  # of a softmax, an error, a norm and a mean, a few each


def records(run: Run, own: El2n) -> bool:
    """All steps: what each trained on."""
    return own.keep < 1


def probes(recording: Recording, own: El2n) -> Mapping[str, float]:
    """``largest_score``; ``score_roundings``: how far scores are from ||softmax(f) - y||_2 of their scout;
    ``off_scouts``: scouts that are too many or few, or have not trained their share of the steps; ``scouts_alike``:
    pairs of them with equal scores; ``cost_over_formula``: FLOPs of the scoring, in reference runs, over those of
    K short runs and K passes forwards. And those of :func:`pruning_probes.shows`."""
    if own.keep == 1:
        return {}
    run, setting = recording.run, recording.run.job.setting
    reference = run.baseline.recipe_of(setting)
    data = run.baseline.data(setting.size, setting.task, setting.data)
    with unchanged_randomness(run.device), scouts_of(run) as noted, FlopCounter() as scoring:
        again = replace(own)
        again.recipe(reference)
        again.data(data, run)  # scores once more: a run is deterministic
    scouts = [look.run for look in noted]
    visited = min(len(data.train), reference.steps * reference.batch_size)
    pool = data.subset(data.sampler(len(data.train), mixed_seed(run.seed, 2), 0, visited))
    scores = torch.stack([_scores(pool, scout) for scout in scouts])
    steps = max(1, round(own.scout * reference.steps))
    plain = recording.twin("baseline").run
    plain.train(1)
    cost = scoring.total / (plain.count_step().flops * reference.steps)
    formula = own.runs * (steps / reference.steps + visited / (3 * reference.steps * reference.batch_size))
    return {
        "largest_score": own.scores.max().item(),
        "score_roundings": (own.scores.double() - scores).abs().max().item() / EPS,
        "off_scouts": abs(len(scouts) - own.runs) + sum(scout.step != steps for scout in scouts),
        "scouts_alike": sum(torch.equal(first, second) for first, second in combinations(own.scores, 2)),
        "cost_over_formula": cost / formula,
        **shows(recording, pool, scores.mean(0), own.keep, own.shorter, ROUNDINGS * EPS, own.offset),
    }


@torch.no_grad()
def _scores(pool: Data, scout: Run) -> Tensor:
    """Definition 2.2 of each example, without augmentation; of a text, the mean over the tokens that count."""
    scout.model.eval()
    size, transform = scout.recipe.batch_size, pool.test_transform or pool.transform
    scores = []
    for start in range(0, len(pool.train), size):
        examples = pool.train[torch.arange(start, min(start + size, len(pool.train)))]
        inputs = transform(examples, generator(scout.seed, start))
        batch = {name: value.to(scout.device) for name, value in inputs.items()}
        scores.append(error_norms(scout.baseline.forward(scout.model, batch).logits, batch))
    return torch.cat(scores).cpu()
