"""ZeRO stage 1 (Rajbhandari et al., SC 2020, section 5.1, P_os): each rank has the optimizer state of 1/N of the model.

A step is: reduce-scatter the gradients, update the own shard, all-gather the parameters. The volume is that of an
all-reduce, 2 (N - 1) / N of the model per rank; model, gradients and Adam's state take 8 + 8 / N bytes per parameter in
fp32, where data parallelism takes 16, and 4 + 12 / N in mixed precision. Gradients are reduced in buckets, or the
buffers of a reduction would take as much again as is saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.loop.run import Run
from techniques.parallelism.shared.collectives import reduce_scatter_mean
from techniques.parallelism.shared.flat import FlatShards


@dataclass
class Zero1(FlatShards):
    """Composes with optimizers whose update is elementwise: a shard does not end where a matrix ends.

    ``bucket_mb`` is the size of one reduction, as in data parallelism: two buffers of it are all that a step takes
    beside model, gradients and state.
    """

    def after_backward(self, run: Run) -> None:
        for bucket in self.buckets:
            bucket.shard.grad = None
            bucket.keep(reduce_scatter_mean(bucket.take_gradients(), run.group))
            self.reduced()
        self.to_masters()
