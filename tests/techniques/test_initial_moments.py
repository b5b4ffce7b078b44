"""What a technique adds to a model begins as its paper, or the authors' code, has it: mean, deviation and bound of each
new parameter, over all layers and some seeds, against literals at pico, whose models are 32 wide.

A sample of n numbers may differ from a law by five standard errors: of the mean, sigma / sqrt(n); of the variance,
sigma^2 sqrt((kurtosis - 1) / n); and its largest number comes as near to a uniform law's bound b as b (1 - 14.4 / n),
below which it falls as rarely.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from suite.entries.catalogue import catalogue
from tests.points import Point, ranks_of

SIGMAS = 5.0
SEEDS = 6
FEWEST = 14.4  # -ln of the probability of five sigmas


@dataclass(frozen=True)
class Law:
    """Numbers with this mean and deviation about it, none farther from it than ``bound``; ``kurtosis`` is the fourth
    central moment over the squared variance, ``sharp`` says that as many lie at the bound as elsewhere."""

    mean: float
    deviation: float
    bound: float = math.inf
    kurtosis: float = 3.0
    sharp: bool = False


def constant(value: float) -> Law:
    return Law(value, 0.0, 0.0)


def uniform(bound: float) -> Law:
    return Law(0.0, bound / 3**0.5, bound, 1.8, sharp=True)


def normal(deviation: float) -> Law:
    return Law(0.0, deviation)


def cut_at_two(deviation: float) -> Law:
    """Normal numbers, those beyond two deviations drawn anew: their variance is 1 - 4 phi(2) / (2 Phi(2) - 1) of it."""
    return Law(0.0, 0.879626 * deviation, 2 * deviation, 2.3655)


ZERO, ONE = constant(0.0), constant(1.0)
LINEAR_32 = uniform(0.1767767)  # torch's own, and loralib's kaiming_uniform(sqrt 5): 1 / sqrt(inputs)
LOW_RANK = {r"\.a\.\d+$": LINEAR_32, r"\.b\.\d+$": ZERO}
SCALES = {r"\.scale$": ZERO}
GATES = {r"\.coefficients$": ONE}
BERT_WEIGHT, BERT_BRANCH = normal(0.1414214), normal(0.0212132)  # baselines/bert.py: 0.8 / sqrt(32), and 0.15 of it
LAWS: Mapping[str, Mapping[str, Law | str]] = {
    "adapter_houlsby": {r"\.(down|up)$": cut_at_two(1e-3), r"\.(down|up)_bias$": ZERO},
    "alpaca_lora": LOW_RANK,
    "lora": LOW_RANK,
    "lora:initialization=gaussian,rank=4": {r"\.a\.\d+$": normal(0.25), r"\.b\.\d+$": ZERO},
    "arora_depth": {r"\.factors\.\d+$": "the balanced factors of the matrix in whose place they are"},
    "dota": {r"\.dota_(query|key)$": normal(0.5)},  # 1 / sqrt(k), k = 4 of 16
    "early_bird": GATES,
    "earlybert": GATES,
    "fixup": {r"\.(before|after)$": ZERO, r"\.scale$": ONE},
    "int_only": {r"\.mantissa$": "the weights that they are the integers of"},
    "intrinsic_dim": {r"\.z$": ZERO, r"\.scales$": ONE},
    "layerscale": {r"\.scale$": constant(0.1)},  # up to 18 blocks
    "mae:encoder=all": {r"\.token$": normal(0.02)},
    "mass": {
        r"^encoder\.": "the baseline's own model",
        r"^decoder\..*(self\.(query|key|value)|intermediate\.dense|transform\.dense)\.weight$": BERT_WEIGHT,
        r"^decoder\..*output\.dense\.weight$": BERT_BRANCH,
        r"^decoder\..*bias$": ZERO,
        r"^decoder\..*LayerNorm\.weight$": ONE,
    },
    "prefix_tuning": {
        r"\.source$": normal(1.0),
        r"\.inner\.(weight|bias)$": LINEAR_32,
        r"\.prefix\.(weight|bias)$": uniform(0.0441942),  # of 512 inputs
    },
    "prompt_tuning": {r"prompt$": "rows of the embedding: see test_prompt_tuning.py"},
    "prompt_tuning:initialization=uniform": {r"prompt$": uniform(0.5)},
    "rezero": SCALES,
    "skipinit": SCALES,
    "vitcod": {
        r"_(query|key)\.0\.(weight|bias)$": uniform(0.7071068),
        r"_(query|key)\.1\.(weight|bias)$": uniform(1.0),
    },
    "vpt": {r"prompt$": uniform(0.4082483)},  # sqrt(6 / (2 x 2 pixels + 32))
}
"""Of each stack, the laws of its new parameters by what their names match, or what else they are."""


def plainly(name: str) -> str:
    """A parameter's name without what wraps the layer that had it before."""
    return re.sub(r"\.(linear|parametrizations|original)(?=\.|$)", "", name)


@cache
def names_of(baseline: str) -> frozenset[str]:
    return frozenset(Point(baseline, 8).run("baseline").model.state_dict())


def new_parameters(stack: str, baseline: str, seed: int = 0) -> dict[str, Tensor]:
    """What the model of a stack has and the baseline's has not, by the names of the former."""
    model = Point(baseline, 8).run(stack, seed=seed).model
    named = {name: each.detach() for name, each in model.named_parameters()}
    return {name: each for name, each in named.items() if plainly(name) not in names_of(baseline)}


def law_of(stack: str, name: str) -> Law | str | None:
    laws = LAWS.get(stack, LAWS.get(stack.partition(":")[0], {}))
    return next((law for pattern, law in laws.items() if re.search(pattern, name)), None)


@pytest.mark.parametrize("name", [name for name in catalogue() if ranks_of(name) == 1])
def test_every_new_parameter_has_a_law(name: str) -> None:
    """Ranks add none."""
    home = catalogue()[name].card.baselines[0]
    assert [each for each in new_parameters(name, home) if law_of(name, each) is None] == []


def far(law: Law, drawn: Tensor) -> list[str]:
    """In what a sample is farther from a law than chance has it."""
    count, values = drawn.numel(), drawn.double()
    about, largest = values - law.mean, (values - law.mean).abs().max().item()
    variance, roundings = law.deviation**2, 1e-6 * max(abs(law.mean), law.deviation)
    error = SIGMAS * math.sqrt((law.kurtosis - 1) / count)
    nearest = law.bound * (1 - FEWEST / count) if law.sharp else 0.0
    seen = {
        f"mean {values.mean():.3g}": about.mean().abs() <= SIGMAS * law.deviation / count**0.5 + roundings,
        f"variance {about.square().mean():.3g}": (about.square().mean() - variance).abs()
        <= error * variance + roundings**2,
        f"largest {largest:.6g}": nearest <= largest <= law.bound * (1 + 1e-6) + roundings,
    }
    return [what for what, holds in seen.items() if not holds]


@pytest.mark.parametrize("stack", LAWS)
def test_new_parameters_begin_by_their_laws(stack: str) -> None:
    drawn: dict[Law, dict[str, Tensor]] = defaultdict(dict)
    for seed in range(SEEDS):
        home = catalogue()[stack.partition(":")[0]].card.baselines[0]
        for name, values in new_parameters(stack, home, seed).items():
            law = law_of(stack, name)
            if isinstance(law, Law):
                drawn[law][f"{name} {seed}"] = values.flatten()
    stated = {law for law in LAWS[stack].values() if isinstance(law, Law)}
    assert drawn.keys() == stated
    for law, samples in drawn.items():
        assert far(law, torch.cat([*samples.values()])) == [], f"{law}: {next(iter(samples))}"
        if law.deviation:
            assert len({each.sum().item() for each in samples.values()}) > len(samples) / 2, "drawn, each by itself"


@pytest.mark.parametrize(
    ("law", "drawn"),
    [
        (uniform(1.0), torch.linspace(-1, 1, 2000) * 0.97),
        (uniform(1.0), torch.linspace(-1, 1, 2000) * 1.01),
        (normal(1.0), torch.linspace(-1.9, 1.9, 2000)),
        (normal(1.0), torch.randn(2000, generator=torch.Generator().manual_seed(0)) + 0.15),
        (constant(0.0), torch.tensor([0.0, 1e-8])),
    ],
)
def test_what_is_another_law_is_seen(law: Law, drawn: Tensor) -> None:
    assert far(law, drawn)
