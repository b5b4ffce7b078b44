"""Tells what a short run shows of GraNd: scores by definition 2.1 in float64, an example at a time, and the examples
trained on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.loop.baseline import Baseline
from suite.loop.data import Batch, Data, generator
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.importance_sampling.grand.technique import Grand, gradient_norms
from techniques.importance_sampling.shared.pruning_probes import candidates_of, shows
from techniques.shared.scouts import scouts_of

EPS = torch.finfo(torch.float32).eps
ROUNDINGS = 64  # of float32: of a forward and a backward pass, a few for each of some tens of operators


def records(run: Run, own: Grand) -> bool:
    """Records all steps: what each trained on."""
    return not own.is_reference


@judged(
    "score_roundings",
    "A score is the norm of the gradient of the example's own loss in all weights.",
    "Definition 2.1",
    id="score",
    at_most=64.0,  # of float32: of a forward and a backward pass, a few for each of some tens of operators
    note="text: of the mean over the tokens that count in the loss",
)
@judged(
    "last_layer_roundings",
    "The part of a score that is the output layer's is ||p - y|| times the norm of that layer's input with a 1 for "
    "the bias.",
    "Follows from definition 2.1 for a linear layer under softmax cross-entropy, where EL2N comes from (section 2)",
    id="last_layer",
    at_most=64.0,  # of float32: of a forward pass, a softmax and an outer product
    baselines=["vit"],
    note="one vector of an example is classified",
)
@judged(
    "off_runs",
    "Scores are computed before any training, by as many networks as asked for.",
    "Definition 2.1 with t = 0",
    id="at_initialisation",
)
@judged(
    "runs_alike",
    "Scores are averaged over independent initialisations.",
    "Definition 2.1; abstract",
    id="independent_initialisations",
)
@judged(
    "misplaced",
    "Every example that is trained on is among those with the highest mean scores.",
    "Section 3",
    id="largest",
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
    "Scoring costs K short runs, and K gradients of each example, as much as a step for each batch.",
    "follows from definition 2.1",
    id="scoring_cost",
    equals=1.0,
    tolerance=0.02,
    kind="counted",
    scope="end_to_end",
    note="FLOPs",
)
def probes(recording: Recording, own: Grand) -> Mapping[str, float]:
    """Includes those of :func:`techniques.importance_sampling.shared.pruning_probes.shows`. Networks that are too many
    or few, or have trained, are ``off_runs``."""
    if own.is_reference or own.saved or own.order == "random":
        return {}
    run = recording.run
    reference = run.baseline.recipe_of(run.job.setting)
    pool = candidates_of(recording)
    with unchanged_randomness(run.device), scouts_of(run) as noted, FlopCounter() as scoring:
        again = replace(own)
        again.recipe(reference)
        again.data(run.baseline.data(run.job.setting.size, run.job.setting.task, run.job.setting.data), run)
    networks = [look.run for look in noted]
    expected = torch.stack([_scores(pool, network) for network in networks])
    ranking = expected.mean(0) * (-1 if own.order == "easy" else 1)
    steps = round(own.scout * reference.steps)
    plain = recording.twin("baseline").run
    plain.train(1)
    cost = scoring.total / (plain.count_step().flops * reference.steps)
    share = len(pool.train) / (reference.steps * reference.batch_size)
    return {
        "cost_over_formula": cost / (own.runs * (steps / reference.steps + share)),
        "score_roundings": _roundings(own.by_network.double(), expected),
        "off_runs": abs(len(networks) - own.runs) + sum(network.step != steps for network in networks),
        "runs_alike": sum(torch.equal(first, second) for first, second in combinations(own.by_network, 2)),
        **shows(recording, pool, ranking, own.keep, own.shorter, ROUNDINGS * EPS * expected.max().item(), own.offset),
        **_last_layer(pool, networks[0]),
    }


def _scores(pool: Data, network: Run) -> Tensor:
    """Computes definition 2.1 for one network, float64 [examples]; of gradients in float32 where a model's products
    have no other type (those of a mixture of experts)."""
    try:
        return _norms(pool, network, torch.float64)
    except RuntimeError:
        return _norms(pool, network, torch.float32)


def _norms(pool: Data, network: Run, dtype: torch.dtype) -> Tensor:
    model = copy.deepcopy(network.model).to(dtype).eval()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for batch in _batches(pool, network):
        typed = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
        for i in range(len(next(iter(typed.values())))):
            one = {name: value[i : i + 1] for name, value in typed.items()}
            loss = network.baseline.losses(network.baseline.forward(model, one), one).sum()
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            norms.append(
                torch.cat([gradient.flatten().double() for gradient in gradients if gradient is not None]).norm()
            )
    return torch.stack(norms)


def _batches(pool: Data, network: Run) -> Iterator[Batch]:
    """Yields the batches without augmentation, masked as in the scoring."""
    size, transform = network.recipe.batch_size, pool.test_transform or pool.transform
    for start in range(0, len(pool.train), size):
        rows = torch.arange(start, min(start + size, len(pool.train)))
        yield transform(pool.train[rows], generator(network.seed, start))


def _last_layer(pool: Data, network: Run) -> dict[str, float]:
    """Returns nothing where the output layer reads several vectors of an example."""
    model = copy.deepcopy(network.model).eval()
    head = anatomy(model).head[-1].module
    batch = next(_batches(pool, network))
    seen: list[Tensor] = []
    with head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0])), torch.no_grad():
        logits = network.baseline.forward(model, batch).logits
    if "labels" not in batch or seen[0].ndim != 2:
        return {}
    own = {id(parameter) for parameter in head.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in own)
    errors = logits.double().softmax(-1)
    errors[torch.arange(len(errors)), batch["labels"]] -= 1
    inputs = torch.cat([seen[0].double(), torch.ones(len(errors), 1)], 1)
    return {
        "last_layer_roundings": _roundings(
            _ours(model, network.baseline, batch), errors.norm(dim=1) * inputs.norm(dim=1)
        )
    }


def _ours(model: nn.Module, baseline: Baseline, batch: Batch) -> Tensor:
    return gradient_norms(model, lambda model, batch: baseline.losses(baseline.forward(model, batch), batch), batch)


def _roundings(ours: Tensor, expected: Tensor) -> float:
    """Returns the largest distance, relative to what is expected."""
    return ((ours.double() - expected).abs() / expected).max().item() / EPS
