"""Tells what recorded steps show of fine-tuning in a subspace, beside the plain model at theta_0 + lambda P z.

P is applied here by halves, H [a, b] = [H a + H b, H a - H b], in float64, with the random numbers that the run drew;
its transpose takes the plain model's gradients to those that z and the scales must have had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Moment
from techniques.fine_tuning.intrinsic_dim.technique import IntrinsicDimension
from techniques.fine_tuning.shared.tuning_probes import (
    at_the_start_and_in_the_middle,
    different_at_start,
    heads_in,
    trained_numbers,
    tuning_probes,
)
from techniques.shared.plain import apart, gradients_of, plain_model

OF_ITS_BASELINES = True  # whose layers are the blocks of one stack
Z, SCALES = "intrinsic_subspace.z", "intrinsic_subspace.scales"
DIRECTIONS = 8
records = at_the_start_and_in_the_middle


@dataclass(frozen=True)
class _Tensor:
    """Describes a parameter of the plain model: its name in the run's, its layer (None outside of the blocks), and what
    its projection was drawn as, float64 and int64."""

    theirs: str
    layer: int | None
    size: int
    signs: Tensor
    places: Tensor
    gains: Tensor

    @property
    def norm(self) -> Tensor:
        return (self.size * self.gains.square().sum()).sqrt()

    def forth(self, z: Tensor) -> Tensor:
        """Computes P z, with zeros behind z up to as many numbers as there are gains."""
        first = _hadamard(torch.cat([self.signs * z, z.new_zeros(len(self.gains) - len(z))]))
        return _hadamard(self.gains * first[self.places])[: self.size] / self.norm

    def back(self, gradient: Tensor) -> Tensor:
        """Computes P^T of a gradient [size]."""
        padded = torch.cat([gradient, gradient.new_zeros(len(self.gains) - self.size)])
        first = torch.zeros_like(padded).index_add(0, self.places, self.gains * _hadamard(padded))
        return self.signs * _hadamard(first)[: len(self.signs)] / self.norm


def _hadamard(x: Tensor) -> Tensor:
    width = len(x)
    while width > 1:
        width //= 2
        one, other = x.view(-1, 2, width).unbind(1)
        x = torch.stack([one + other, one - other], 1)
    return x.flatten()


@judged(
    "elsewhere",
    "z, a scale for each layer and the output layer of a new task are trained, and nothing else is",
    "Section 3",
    id="what_is_trained",
)
@judged("frozen_moved", "The pre-trained theta_0 does not move by a bit", "Equations 1 and 2", id="theta_0_is_fixed")
@judged(
    "different_at_start",
    "z is 0 at the start, so that the outputs are the pre-trained model's to the bit",
    "Equation 1",
    id="starts_as_the_pretrained_model",
)
@judged(
    "not_projected",
    "Every parameter of the pre-trained model is moved by a projection",
    "Equation 1: theta is all of the model",
    id="all_of_theta",
    note="the output layer of a new task aside",
)
@judged(
    "gradient_roundings",
    "theta is theta_0 + lambda P z with P = H G Pi H B / sqrt(D sum G^2): the gradients of z and of the scales are "
    "P's transpose, and the scales' inner products, of full fine-tuning's",
    "Equations 1 and 2, by the chain rule; Fastfood (Le et al., 2013)",
    id="projection",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "length",
    "P keeps lengths: the squared length of a projected vector of length 1 is 1 on average over parameters",
    "Fastfood's scaling: the divisor of public code",
    equals=1.0,
    # of some forty parameters in eight directions, whose squares spread by a quarter where few rows are kept
    tolerance=0.1,
)
@judged(
    "not_permuted",
    "Pi is a permutation: each entry of the first transform is taken equally often",
    "Fastfood (Le et al., 2013)",
    id="permutation",
)
@judged("not_signs", "B is a diagonal of signs", "Fastfood (Le et al., 2013)", id="signs")
@judged(
    "alike", "Each parameter has a projection of its own", "Equation 1: P is one random matrix", id="own_projections"
)
@judged(
    "bytes",
    "A projection to D weights holds 8 n + d bytes, n being the power of 2 that is at least D and d",
    "This entry's storage: G in float32, Pi in int32, B in int8",
    id="projection_bytes",
    equals=1.0,
    kind="counted",
)
@judged("at_rest", "The step moves z, the scales and the output layer", "Equation 2", id="all_of_it_moves")
@judged(
    "rate",
    "Ten times the learning rate of full fine-tuning",
    "This entry's choice: Adam moves D weights by sqrt(D / d) times less along d columns of length 1",
    equals=10.0,
    tolerance=1e-6,
)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each trained number and none for a fixed one",
    "Two moments in float32",
    id="state_for_what_trains",
    equals=8.0,
    kind="counted",
)
def probes(recording: Recording, own: IntrinsicDimension) -> Mapping[str, float]:
    """Includes what :func:`tuning_probes` says. ``length`` is the mean over parameters and directions. Claims read
    ``dimension``, the numbers that are trained beside the head, over d, and ``scales``, those of layers, over the
    number of blocks."""
    plain, first, trace = plain_model(recording), recording.traces[0], recording.trace
    heads = heads_in(plain)
    names = _names(plain, trace.after.parameters)
    tensors = dict(_tensors(plain, names, trace.before))
    subspace = [name for name in (Z, SCALES) if name in trace.after.parameters]
    result = {
        **tuning_probes(recording, plain, heads | set(subspace), names),
        "different_at_start": different_at_start(recording, plain),
        "dimension": trained_numbers(trace, subspace) / own.dimension,
        "not_projected": sum(name not in tensors.keys() | heads for name, _ in plain.named_parameters()),
        "scales": trained_numbers(trace, [SCALES] if SCALES in subspace else []) / len(anatomy(plain).blocks),
        "length": _length(recording, first.before, tensors),
        "not_permuted": sum(_unevenly(tensor) for tensor in tensors.values()),
        "alike": sum(
            torch.equal(one.gains, other.gains) or torch.equal(one.places, other.places)
            for one, other in combinations(tensors.values(), 2)
            if len(one.gains) == len(other.gains)
        ),
        "not_signs": sum(int((tensor.signs.abs() != 1).sum()) for tensor in tensors.values()),
        "bytes": _bytes(trace.before) / sum(8 * len(tensor.gains) + len(tensor.signs) for tensor in tensors.values()),
    }
    values, ours = trace.before.parameters, trace.of("backward")[0].gradients
    z, scales = values[Z].double(), values.get(SCALES, torch.ones(0)).double()
    moved = {name: tensor.forth(z) for name, tensor in tensors.items()}
    factors = {
        name: scales[tensor.layer] if len(scales) and tensor.layer is not None else 1.0
        for name, tensor in tensors.items()
    }
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            start = values[names[name]].double()
            parameter.copy_(start + factors[name] * moved[name].view(start.shape) if name in tensors else start)
    gradients = gradients_of(recording, trace, plain)
    of_scales = torch.zeros_like(scales)
    for name, tensor in tensors.items():
        if len(scales) and tensor.layer is not None:
            of_scales[tensor.layer] += gradients[name].flatten() @ moved[name]
    expected = {name: gradients[name] for name in heads}
    of_z = [factors[name] * tensor.back(gradients[name].flatten()) for name, tensor in tensors.items()]
    expected[Z] = torch.stack(of_z).sum(0)
    if len(scales):
        expected[SCALES] = of_scales
    result["gradient_roundings"] = apart(ours, expected)
    return result


def _names(plain: nn.Module, values: Mapping[str, Tensor]) -> dict[str, str]:
    """Finds for each parameter of the plain model its name in the run's, in the first of its places there."""
    first = {id(parameter): name for name, parameter in plain.named_parameters()}
    names: dict[str, str] = {}
    for place, parameter in plain.named_parameters(remove_duplicate=False):
        path, _, last = place.rpartition(".")
        inside = f"{path}.parametrizations.{last}.original".lstrip(".")
        theirs = next((name for name in (inside, place) if name in values), None)
        if theirs is not None:
            names[first[id(parameter)]] = theirs
    return names


def _tensors(plain: nn.Module, names: Mapping[str, str], moment: Moment) -> Iterator[tuple[str, _Tensor]]:
    """Yields the projected parameters by their names in the plain model."""
    blocks = [f"{block.path}." for block in anatomy(plain).blocks]
    for name, parameter in plain.named_parameters():
        theirs = names.get(name, "")
        if theirs.endswith(".original"):
            drawn = f"{theirs.removesuffix('original')}0."
            signs, places, gains = (moment.buffers[f"{drawn}{kind}"] for kind in ("signs", "places", "gains"))
            layer = next((index for index, block in enumerate(blocks) if name.startswith(block)), None)
            yield name, _Tensor(theirs, layer, parameter.numel(), signs.double(), places.long(), gains.double())


def _unevenly(tensor: _Tensor) -> int:
    """Counts the entries that are not taken n / k times, where the transform repeats itself after k, the power of 2
    from d on."""
    period = 1
    while period < len(tensor.signs):
        period *= 2
    taken = torch.bincount(tensor.places % period, minlength=period)
    return int((taken != len(tensor.places) // period).sum())


def _length(recording: Recording, start: Moment, tensors: Mapping[str, _Tensor]) -> float:
    """Measures the length of what the run's own weights move by."""
    random = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(DIRECTIONS):
        z = torch.randn(start.parameters[Z].shape, generator=random)
        with recording.at({**start.parameters, Z: z / z.norm()}), torch.no_grad():
            for name, tensor in tensors.items():
                path, _, last = name.rpartition(".")
                now = getattr(recording.run.model.get_submodule(path), last)
                squares.append((now - start.parameters[tensor.theirs]).double().square().sum())
    return torch.stack(squares).mean().item()


def _bytes(moment: Moment) -> int:
    drawn = [buffer for name, buffer in moment.buffers.items() if ".parametrizations." in f".{name}"]
    return sum(buffer.numel() * buffer.itemsize for buffer in drawn)
