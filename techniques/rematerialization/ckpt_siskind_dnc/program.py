"""Implements reverse mode by divide and conquer over any program of tensors, loops and branches included, with no
annotation (Siskind and Pearlmutter, 2018, section 3).

    reverse(f, x, y_bar)    a few steps: ordinary reverse mode
                            else         z = interrupt(f, x, l)          what is alive after l steps: a capsule
                                         z_bar = reverse(resume, z, y_bar)
                                         x_bar = reverse(interrupt at l, x, z_bar)

A step is an operator of tensors. The paper's language counts and interrupts evaluation steps; here a first run counts
and notes the operators, without their values, so that a capsule resumes by running on from its step. What the program
decided by its values, which branch and how many rounds, is in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from suite.device.random_state import RandomState, replayed
from techniques.rematerialization.shared.divided import Split, bisection

Values = dict[int, Tensor]
"""Tensors by number: the inputs first, then results in the order in which they were made."""


class Ref(NamedTuple):
    """Says where an operator reads a value."""

    number: int


class Step(NamedTuple):
    """Holds an operator, its arguments with values left out, the numbers of its results (None for what is no tensor),
    and the random state that it began with, if it draws."""

    operator: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    results: tuple[int | None, ...]
    random: RandomState | None


@dataclass(frozen=True)
class Capsule:
    """Holds an interrupted run: the steps that were made, and what is alive after them."""

    step: int
    values: Values


class Program:
    """Holds the steps of one run of ``f`` on these inputs, which gives one tensor.

    Attributes:
        steps: every operator.
        result, output: the result and its number.
        operator_runs: operators that ran so far, the first run's among them.
        most_alive: most capsules that were there at once.

    Raises ValueError for operators that write in place, and for tensors from outside that want a gradient.
    """

    def __init__(self, f: Callable[..., Tensor], *inputs: Tensor) -> None:
        notes = _Notes(inputs)
        with torch.no_grad(), notes:
            self.result = f(*notes.inputs)
        self.output = notes.number(self.result)
        self.steps, self.constants = notes.steps, notes.constants
        self.operator_runs, self.alive, self.most_alive = len(self.steps), 0, 0
        self.last_use = {number: step for step, read in enumerate(self.steps) for number in _read(read)}
        self.last_use[self.output] = len(self.steps)

    def begun(self, *inputs: Tensor) -> Capsule:
        """Returns the capsule before the first step."""
        return self.capsule(0, {n: operand.detach() for n, operand in enumerate(inputs)})

    def interrupt(self, capsule: Capsule, steps: int) -> Capsule:
        """Returns the capsule so many steps on."""
        with torch.no_grad():
            return self.capsule(capsule.step + steps, self.run(dict(capsule.values), capsule.step, steps))

    def resume(self, capsule: Capsule) -> Tensor:
        """Computes the result."""
        return self.interrupt(capsule, len(self.steps) - capsule.step).values[self.output]

    def capsule(self, step: int, values: Values) -> Capsule:
        """Keeps what later steps read."""
        return Capsule(step, {n: value for n, value in values.items() if self.last_use.get(n, -1) >= step})

    def run(self, values: Values, first: int, steps: int) -> Values:
        """Adds the results of these steps to the values, and forgets what is not needed any more."""
        for index in range(first, first + steps):
            step = self.steps[index]
            args, kwargs = self.arguments(step, values)
            with nullcontext() if step.random is None else replayed(step.random):
                results = tree_leaves(step.operator(*args, **kwargs))
            values |= {n: result for n, result in zip(step.results, results, strict=True) if n is not None}
            for number in {*_read(step), *step.results}:
                if self.last_use.get(number, -1) <= index:  # type: ignore[arg-type]
                    values.pop(number, None)  # type: ignore[arg-type]
        self.operator_runs += steps
        return values

    def arguments(self, step: Step, values: Values) -> Any:
        """Returns positional and named arguments, with their values."""
        there = self.constants | values

        def filled(leaf: Any) -> Any:
            return there[leaf.number] if isinstance(leaf, Ref) else leaf

        return tree_map(filled, step.arguments, is_leaf=lambda leaf: isinstance(leaf, Ref))

    def taped(self, capsule: Capsule, steps: int, cotangents: Values) -> Values:
        """Runs ordinary reverse mode over a few steps: the cotangents of the capsule's values, from those of later
        ones."""
        leaves = {n: value.detach() for n, value in capsule.values.items()}
        wanted = [leaf.requires_grad_() for leaf in leaves.values() if leaf.is_floating_point()]
        with torch.enable_grad():
            values = self.run(dict(leaves), capsule.step, steps)
        reached = [n for n in cotangents if n in values and values[n].requires_grad]
        gradients = torch.autograd.grad(
            [values[n] for n in reached], wanted, [cotangents[n] for n in reached], allow_unused=True
        )
        numbers = [n for n, leaf in leaves.items() if leaf.is_floating_point()]
        return {n: gradient for n, gradient in zip(numbers, gradients, strict=True) if gradient is not None}


def reverse(
    program: Program, capsule: Capsule, steps: int, cotangents: Values, base: int, split: Split, snapshots: int
) -> Values:
    """Computes the cotangents of a capsule's values from those of what is alive ``steps`` later."""
    program.alive += 1
    program.most_alive = max(program.most_alive, program.alive)
    while steps > base:
        run = split(steps, snapshots)
        middle = program.interrupt(capsule, run)
        cotangents = reverse(program, middle, steps - run, cotangents, base, split, snapshots - 1)
        del middle
        steps = run
    program.alive -= 1
    return program.taped(capsule, steps, cotangents)


def gradients(
    f: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    base: int = 1,
    split: Split = bisection,
    snapshots: int = 2**31,
) -> tuple[Tensor, list[Tensor | None]]:
    """Computes ``f(*inputs)``, one number, and its gradients, with tapes of at most ``base`` operators.

    Equal to the bit to those of ``torch.autograd.grad``. Raises ValueError as :class:`Program`.
    """
    program = Program(f, *inputs)
    cotangents = {program.output: torch.ones_like(program.result)}
    reached = reverse(program, program.begun(*inputs), len(program.steps), cotangents, base, split, snapshots)
    return program.result, [reached.get(n) for n in range(len(inputs))]


class _Notes(TorchDispatchMode):
    """Notes the operators that run, by what they read and make."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.numbers = WeakTensorKeyDictionary()
        self.count = 0
        self.inputs = [operand.detach() for operand in inputs]
        for operand in self.inputs:
            self.new(operand)
        self.constants: Values = {}
        self.steps: list[Step] = []

    def new(self, tensor: Tensor) -> int:
        self.numbers[tensor] = self.count
        self.count += 1
        return self.count - 1

    def number(self, tensor: Tensor) -> int:
        if tensor not in self.numbers:
            if tensor.requires_grad:
                raise ValueError("the program reads a tensor from outside that wants a gradient: make it an input")
            self.constants[self.new(tensor)] = tensor
        return int(self.numbers[tensor])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            raise ValueError(f"{func} writes in place, so that no capsule before it lasts: write the program without")
        random = _random_state(args, kwargs) if torch.Tag.nondeterministic_seeded in func.tags else None
        arguments = tree_map(
            lambda leaf: Ref(self.number(leaf)) if isinstance(leaf, Tensor) else leaf, (tuple(args), kwargs or {})
        )
        out = func(*args, **(kwargs or {}))
        results = tuple(self.new(leaf) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(out))
        if any(result is not None for result in results):  # else the program looks at a value, and decides by it
            self.steps.append(Step(func, arguments, results, random))
        return out


def _random_state(args: Any, kwargs: Any) -> RandomState:
    """Returns the random state that an operator is about to draw from."""
    leaves = tree_leaves((args, kwargs))
    devices = [
        leaf.device if isinstance(leaf, Tensor) else leaf for leaf in leaves if isinstance(leaf, Tensor | torch.device)
    ]
    return RandomState.now(devices[0] if devices else torch.device("cpu"))


def _read(step: Step) -> list[int]:
    leaves = tree_leaves(step.arguments, is_leaf=lambda leaf: isinstance(leaf, Ref))
    return [leaf.number for leaf in leaves if isinstance(leaf, Ref)]
