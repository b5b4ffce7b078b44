"""Cuts a model into stages: consecutive blocks with what the model does before, between and after them.

The model's own forward stays as it is, whatever it does around its blocks::

    stage 0      inputs ── embedding ── block 0 ── block 1 ──┤ handed on
    stage 1      inputs ── (nothing)  ┤ handed in ── block 2 ── block 3 ── norm ── head ── logits

A rank runs that forward. Blocks of earlier stages let pass what they get; the last of them gives what was handed in;
after the stage's own last block the forward ends, by an exception. Parameters of other stages are no parameters of the
rank's model: in their place stands one zero, spread to their shape. What leads to the first block is done with such
zeros on every rank, so that masks and positions that the model makes of its inputs are there; its numbers go nowhere.

Which stage uses which parameter is seen in the graph of a trial pass, cut where the stages are. One that two stages use
(a tied embedding) is on both, and its gradient is the sum of theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from suite.model.anatomy import Anatomy, Block, anatomy
from suite.model.calls import undisturbed
from suite.model.forwards import standing_in
from suite.model.held import hold
from suite.model.segments import split_hidden
from suite.pipeline.mail import Shape

Forward = Callable[[], Tensor]
"""Passes some examples through the model and gives what its loss is made of."""


class NotDivisible(ValueError):
    """Is raised where the model cannot be cut into these stages; the message says why and what to do."""


class HandedOn(Exception):
    """Is raised where a stage ends; ``hidden`` is what the next one gets."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("a stage that is not the last was run outside of its pipeline")
        self.hidden = hidden


def balanced(costs: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """Returns the ranges [start, end) of consecutive blocks, none empty, whose largest cost is as small as can be; of
    such divisions the one whose early stages are longest.

    Raises NotDivisible for fewer blocks than stages.
    """
    if len(costs) < stages:
        raise NotDivisible(f"{len(costs)} blocks do not make {stages} stages: take fewer ranks or a deeper model")
    best: list[list[tuple[float, int]]] = [[(float("inf"), 0)] * (len(costs) + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for count in range(1, stages + 1):
        for end in range(count, len(costs) + 1):
            best[count][end] = min(
                ((max(best[count - 1][start][0], sum(costs[start:end])), -start) for start in range(count - 1, end)),
            )
    ends = [len(costs)]
    for count in range(stages, 0, -1):
        ends.insert(0, -best[count][ends[0]][1])
    return list(pairwise(ends))


@dataclass
class Stages:
    """Holds the stages of a model. ``ranges``: of each, its blocks [start, end); ``used``: the names of the parameters
    that it uses; ``handed``: of each but the last, the shape of what it hands on for one example; ``unseen``: the names
    of the parameters on which nothing that the model gives depends."""

    blocks: Sequence[nn.Module]
    ranges: Sequence[tuple[int, int]]
    used: Sequence[frozenset[str]]
    handed: Sequence[Shape]
    extras: Sequence[tuple[Any, ...] | None]
    skeleton: nn.Module
    buffers: Mapping[str, int] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()

    @property
    def last(self) -> int:
        return len(self.ranges) - 1

    def shape(self, stage: int, examples: int) -> Shape:
        """Returns the shape of what a stage hands on for a micro-batch."""
        size, dtype = self.handed[stage]
        return Shape((examples, *size), dtype)

    def owners(self, name: str) -> list[int]:
        """Returns the stages that use a parameter."""
        return [stage for stage, names in enumerate(self.used) if name in names]

    def keep(self, model: nn.Module, stages: Sequence[int]) -> None:
        """Leaves in the model the parameters and the blocks of these stages alone."""
        for stage, (start, end) in enumerate(self.ranges):
            for block in self.blocks[start:end]:
                hold(block, stage if stage in stages else None)
        names = frozenset[str]().union(*(self.used[stage] for stage in stages))
        wanted = {id(weight) for name, weight in model.named_parameters() if name in names}
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and id(parameter) not in wanted:
                    del module._parameters[name]
                    setattr(module, name, parameter.detach().new_zeros(()).expand(parameter.shape))

    @contextmanager
    def running(self, stage: int, hidden: Tensor | None) -> Iterator[None]:
        """While active, the model's forward is that of a stage, which ends in :class:`HandedOn` unless it is the last.
        ``hidden``: what the stage before handed on."""
        start, end = self.ranges[stage]

        def passes(at: int, _: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                incoming = hidden if at == start - 1 else split_hidden(args, kwargs)[0]
                extras = self.extras[at]
                return incoming if extras is None else (incoming, *extras)

            return forward

        def ends(block: nn.Module, args: Any, output: Any) -> None:
            raise HandedOn(output[0] if isinstance(output, tuple) else output)

        with ExitStack() as stack:
            for at in range(start):
                stack.enter_context(standing_in(self.blocks[at], partial(passes, at)))
            if stage < self.last:  # a hook, after all others of the block
                stack.callback(self.blocks[end - 1].register_forward_hook(ends).remove)
            yield

    def whole(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """Returns a model of its own, with these values."""
        model = copy.deepcopy(self.skeleton)
        for name, old in list(model.named_parameters()):
            filled = nn.Parameter(parameters[name], old.requires_grad)
            for module in model.modules():
                for own, parameter in module._parameters.items():
                    if parameter is old:
                        module._parameters[own] = filled
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        return model


def without_values(model: nn.Module) -> nn.Module:
    """Returns a copy whose parameters have shapes alone, tied where the model's are."""
    empty = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, dict(empty))


# a trial --------------------------------------------------------------------------------------------------------------


def cut(model: nn.Module, stages: int, forward: Forward, examples: int) -> Stages:
    """Cuts a model into stages whose blocks have as equal shares of the parameters as can be. ``forward`` passes
    ``examples`` through it.

    Raises NotDivisible where there are fewer blocks than stages, and where more than hidden states would cross a cut.
    """
    parts = anatomy(model)
    blocks = parts.every_block
    ranges = balanced([sum(parameter.numel() for parameter in block.module.parameters()) for block in blocks], stages)
    seen = _Trial(model, parts, [end - 1 for _, end in ranges[:-1]])
    with seen.watching():
        seen.roots.append(forward())
    seen.check(examples)
    used = _used(model, seen.roots)
    unseen = frozenset(dict(model.named_parameters())) - frozenset[str]().union(*used)
    used = _with_unseen(model, blocks, ranges, used)
    handed = [Shape(tuple(root.shape[1:]), root.dtype) for root in seen.roots[:-1]]
    return Stages(
        [block.module for block in blocks],
        ranges,
        used,
        handed,
        seen.extras,
        without_values(model),
        _owners_of_buffers(model, blocks, ranges, used),
        unseen,
    )


class _Trial:
    """Makes a pass of the whole model, cut behind the blocks ``ends``: there the graph of a stage ends in ``roots``."""

    def __init__(self, model: nn.Module, parts: Anatomy, ends: Sequence[int]) -> None:
        self.model, self.ends = model, set(ends)
        self.blocks = parts.every_block
        self.roots: list[Tensor] = []
        self.extras: list[tuple[Any, ...] | None] = []
        self.ran: list[int] = []
        self.reshaping: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(undisturbed(self.model))
            for frozen in (parameter for parameter in self.model.parameters() if not parameter.requires_grad):
                if frozen.is_floating_point() or frozen.is_complex():
                    frozen.requires_grad_()
                    stack.callback(frozen.requires_grad_, False)
            for at, block in enumerate(self.blocks):
                hook = block.module.register_forward_hook(self._note(at, block), with_kwargs=True)
                stack.callback(hook.remove)
            self.model.eval()
            yield

    def _note(self, at: int, block: Block) -> Callable[..., Any]:
        def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            hidden, extras = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
            self.ran.append(at)
            self.extras.append(extras)
            if hidden.shape != split_hidden(args, kwargs)[0].shape:
                self.reshaping.append(block.path)
            if at not in self.ends:
                return output
            self.roots.append(hidden)
            handed = hidden.detach().requires_grad_()
            return handed if extras is None else (handed, *extras)

        return note

    def check(self, examples: int) -> None:
        name = type(self.model).__name__
        if self.ran != list(range(len(self.blocks))):
            raise NotDivisible(
                f"{name} does not run its blocks once each in their order, as a pipeline does: use another model"
            )
        if self.reshaping:
            raise NotDivisible(
                f"{self.reshaping[0]} changes the shape of its hidden states, which a pipeline hands on as "
                "they are: use another model"
            )
        if any(isinstance(argument, Tensor) for extras in self.extras for argument in extras or ()):
            raise NotDivisible(f"the blocks of {name} hand on more than hidden states: use a model whose blocks do not")
        if any(root.shape[0] != examples for root in self.roots[:-1]):
            raise NotDivisible(f"the hidden states of {name} do not have the examples first: use another model")


def _used(model: nn.Module, roots: Sequence[Tensor]) -> list[frozenset[str]]:
    """Returns the names of the parameters in each stage's graph."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    used: list[set[str]] = []
    inside: set[Any] = set()
    for root in roots:
        nodes, leaves = _graph(root)
        if nodes & inside:
            raise NotDivisible(
                f"a later stage of {type(model).__name__} reads more of an earlier one than its hidden states (an "
                "encoder's output, a table of relative positions): use a model whose blocks do not"
            )
        inside |= nodes
        used.append({names[id(leaf)] for leaf in leaves if id(leaf) in names})
    return [frozenset(names_of_stage) for names_of_stage in used]


def _with_unseen(
    model: nn.Module, blocks: Sequence[Block], ranges: Sequence[tuple[int, int]], seen: Sequence[frozenset[str]]
) -> list[frozenset[str]]:
    """Adds the parameters in no graph to the stage whose block has them; others to the first, or, where they are whole
    numbers, which no graph shows, to all."""
    used = [set(names) for names in seen]
    for name, parameter in model.named_parameters():
        if any(name in names for names in seen):
            continue
        if (stage := _stage_of(name, blocks, ranges)) is not None:
            used[stage].add(name)
        else:
            for names in used[:1] if parameter.is_floating_point() else used:
                names.add(name)
    return [frozenset(names) for names in used]


def _stage_of(name: str, blocks: Sequence[Block], ranges: Sequence[tuple[int, int]]) -> int | None:
    """Returns the stage of the block that a parameter or buffer lies in; None outside of all."""
    stage_of = {at: stage for stage, (start, end) in enumerate(ranges) for at in range(start, end)}
    return next((stage_of[at] for at, block in enumerate(blocks) if name.startswith(f"{block.path}.")), None)


def _graph(root: Tensor) -> tuple[set[Any], list[Tensor]]:
    """Returns the inner nodes of a graph, and its leaves."""
    nodes: set[Any] = set()
    leaves: list[Tensor] = []
    waiting, seen = [root.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        else:
            nodes.add(node)
            waiting += [following for following, _ in node.next_functions]
    return nodes, leaves


def _owners_of_buffers(
    model: nn.Module, blocks: Sequence[Block], ranges: Sequence[tuple[int, int]], used: Sequence[frozenset[str]]
) -> dict[str, int]:
    """Returns the stage whose module a buffer belongs to: that of its block, or of its module's parameters; else the
    first."""
    owners = {}
    for name, _ in model.named_buffers():
        module = name.rpartition(".")[0]
        inside = _stage_of(name, blocks, ranges)
        beside = [
            stage
            for stage, names in enumerate(used)
            if any(used_name.rpartition(".")[0] == module for used_name in names)
        ]
        owners[name] = inside if inside is not None else (beside or [0])[0]
    return owners
