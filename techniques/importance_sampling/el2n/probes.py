"""Tells what a short run shows of EL2N: the scouts' scores by definition 2.2 in float64, and the examples trained
on."""

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
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.importance_sampling.el2n.technique import El2n
from techniques.importance_sampling.shared.error_probes import error_norms
from techniques.importance_sampling.shared.pruning_probes import shows
from techniques.shared.scouts import scouts_of

EPS = torch.finfo(torch.float32).eps
ROUNDINGS = 16  # of a softmax, an error, a norm and a mean, a few each


def records(run: Run, own: El2n) -> bool:
    """Records all steps: what each trained on."""
    return own.keep < 1


@judged(
    "largest_score", "A score lies between 0 and the square root of 2.", "Definition 2.2", id="bound", at_most=1.41422
)
@judged(
    "score_roundings",
    "A score is ||softmax(f(x)) - y||_2 of a network after a tenth of the steps.",
    "Definition 2.2",
    id="score",
    at_most=16.0,  # of float32: of a softmax, an error, a norm and a mean, a few each
    note="text: its mean over the tokens that count in the loss",
)
@judged(
    "off_scouts",
    "Each of the scoring networks trains for its share of the reference's steps before it scores.",
    "Definition 2.2; section 3",
    id="scouts",
)
@judged(
    "scouts_alike", "Scores are averaged over independent initialisations.", "Definition 2.2", id="independent_scouts"
)
@judged(
    "misplaced",
    "Every example that is trained on is among those with the highest mean scores.",
    "Section 3",
    id="hardest",
    note="offset 0",
)
@judged(
    "off_steps",
    "As many training steps as on all examples: what is kept is seen more often.",
    "The authors' scripts/run_keep_max_scores.py: num_steps = 200 * EP_STEPS for every subset_size",
    id="steps",
    note="shorter=true: as many passes over what is kept as the reference makes over all, steps rounded up",
)
@judged(
    "cost_over_formula",
    "Scoring costs K short runs and K passes over the examples, a third of a step for each batch.",
    "follows from definition 2.2",
    id="scoring_cost",
    equals=1.0,
    tolerance=0.02,
    kind="counted",
    scope="end_to_end",
    note=(
        "FLOPs; a forward pass is a little more than a third, since the first layer's backward pass has one product "
        "less"
    ),
)
def probes(recording: Recording, own: El2n) -> Mapping[str, float]:
    """Includes those of :func:`pruning_probes.shows`. Scouts that are too many or few, or have not trained their share,
    are ``off_scouts``."""
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
    """Computes definition 2.2 of each example, without augmentation; of a text, the mean over the tokens that count."""
    scout.model.eval()
    size, transform = scout.recipe.batch_size, pool.test_transform or pool.transform
    scores = []
    for start in range(0, len(pool.train), size):
        examples = pool.train[torch.arange(start, min(start + size, len(pool.train)))]
        inputs = transform(examples, generator(scout.seed, start))
        batch = {name: value.to(scout.device) for name, value in inputs.items()}
        scores.append(error_norms(scout.baseline.forward(scout.model, batch).logits, batch))
    return torch.cat(scores).cpu()
