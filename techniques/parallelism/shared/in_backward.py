"""Communicates buckets of gradients while the backward pass goes on, in one order on all ranks.

Li et al., PVLDB 2020, section 3.2.3: a bucket is ready when all its gradients are there; it is begun when all buckets
before it are, since ranks that begin collectives in different orders wait for each other for ever::

    backward   | layer 3 | layer 2 | layer 1 | embedding |
    link             | bucket 0    | bucket 1   | bucket 2 |

What the pass gives no gradient holds its bucket up until the pass ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from torch import nn
from torch.autograd import Variable

B = TypeVar("B")
IN_FLIGHT = 2  # buckets whose buffers are in memory at once

End = Callable[[], None]


class InBackward(Generic[B]):
    """Begins each of ``buckets`` in their order, as soon as the parameters that ``held_by`` names of it have gradients.

    ``begin(bucket)`` starts its communication and returns what waits for it, and puts the result where it belongs. When
    a backward pass returns, all of its buckets are done.
    """

    def __init__(
        self, buckets: Sequence[B], held_by: Callable[[B], Sequence[nn.Parameter]], begin: Callable[[B], End]
    ) -> None:
        self._buckets, self._begin = list(buckets), begin
        self._needs = [{id(parameter) for parameter in held_by(bucket)} for bucket in self._buckets]
        self._of: dict[int, list[int]] = {}
        parameters: dict[int, nn.Parameter] = {}
        for index, bucket in enumerate(self._buckets):
            for parameter in held_by(bucket):
                parameters[id(parameter)] = parameter
                self._of.setdefault(id(parameter), []).append(index)
        self._of = {key: sorted(set(indices)) for key, indices in self._of.items()}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in parameters.values()
        ]
        self._flying: deque[End] = deque()
        self._passing = False
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While active, passes leave their gradients where they are."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def remove(self) -> None:
        """Leaves the parameters alone from now on."""
        for handle in self._handles:
            handle.remove()

    def _arrived(self, parameter: nn.Parameter) -> None:
        if self._paused:
            return
        if not self._passing:
            self._passing, self._next = True, 0
            self._missing = [len(need) for need in self._needs]
            Variable._execution_engine.queue_callback(self._end)
        for index in self._of[id(parameter)]:
            self._missing[index] -= 1
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._launch()

    def _launch(self) -> None:
        if len(self._flying) == IN_FLIGHT:
            self._flying.popleft()()
        self._flying.append(self._begin(self._buckets[self._next]))
        self._next += 1

    def _end(self) -> None:
        while self._next < len(self._buckets):
            self._launch()
        while self._flying:
            self._flying.popleft()()
        self._passing = False
