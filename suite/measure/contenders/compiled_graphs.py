"""Finds what torch.compile saves for the backward pass, without compiling: AOTAutograd's joint graph, partitioned.

Inductor traces forward and backward into one graph and cuts it where the fewest bytes cross (min-cut rematerialisation:
torch/_functorch/partitioners.py, after Chen et al., 1604.06174, and Dao et al.'s recomputation): what crosses is what a
compiled step saves. All of that happens before any code is generated. So Inductor's own passes run here up to that
point, and the two graphs are then run operator by operator, which takes tensors without values, too.

Limits. What the generated code allocates in between, and so its peak, is decided later and is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from suite.measure.at_scale.weightless import replaced


@contextmanager
def partitioned_graphs() -> Iterator[None]:
    """While active, ``torch.compile`` of a module gives one that runs its partitioned graphs."""
    compile = torch.compile

    def partitioned(model: Any = None, **options: Any) -> Any:
        return compile(model, backend=_partition) if isinstance(model, nn.Module) else compile(model, **options)

    try:
        with replaced(torch, "compile", partitioned):
            yield
    finally:
        torch._dynamo.reset()


def _partition(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx  # takes seconds to load

    return compile_fx(graph, inputs, inner_compile=_as_it_is)  # type: ignore[return-value]


def _as_it_is(graph: GraphModule, inputs: Any, **_: Any) -> Any:
    def run(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()  # as generated code does, for what is read once to be freed
        return graph.forward(*taken)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
