"""ZeRO stage 2 (Rajbhandari et al., SC 2020, section 5.2, P_os+g): each rank keeps the gradients of its shard, too.

    backward:   a bucket's gradients are all there   ->  reduce-scatter it; free them; keep the own 1/N of the mean
    then:       update the own shard; all-gather the parameters

So gradients stay whole for as long as a bucket takes: model, gradients and Adam's state take 4 + 12 / N bytes per
parameter in fp32, 2 + 14 / N in mixed precision; data parallelism takes 16 in both. The volume stays 2 (N - 1) / N of
the model per rank (section 7.2.1).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from suite.loop.run import Run
from suite.loop.technique import ParameterGroups
from techniques.parallelism.shared.collectives import begin_reduce_scatter_mean
from techniques.parallelism.shared.flat import Bucket, FlatShards
from techniques.parallelism.shared.in_backward import End, InBackward


@dataclass
class Zero2(FlatShards):
    """Composes with optimizers whose update is elementwise: a shard does not end where a matrix ends. A step of several
    backward passes reduces in each of them, and adds up shards.

    ``bucket_mb`` is the size of one reduction, as in data parallelism; two are under way at once.
    """

    reduction: InBackward[Bucket] | None = field(init=False, repr=False, default=None)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        if self.reduction is not None:  # of a model that has been grown meanwhile
            self.reduction.remove()
        shards = super().parameters(groups, run)
        place = {id(parameter): number for number, parameter in enumerate(run.model.parameters())}

        def first(bucket: Bucket) -> int:
            return min((place[id(parameter)] for parameter, *_ in bucket.pieces), default=0)

        def begin(bucket: Bucket) -> End:
            scattered = begin_reduce_scatter_mean(bucket.take_gradients(), run.group)
            self.reduced()

            return lambda: bucket.keep(scattered())

        ordered = sorted(self.buckets, key=first, reverse=True)  # stable: of one table the last bucket stays first
        self.reduction = InBackward(ordered, _parameters_of, begin)
        return shards

    def unreduced(self, run: Run) -> AbstractContextManager[Any]:
        return nullcontext() if self.reduction is None else self.reduction.paused()

    def after_backward(self, run: Run) -> None:
        self.to_masters()


def _parameters_of(bucket: Bucket) -> list[nn.Parameter]:
    return [parameter for parameter, *_ in bucket.pieces]
