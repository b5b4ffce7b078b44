"""Tells how nanotron divides a model among the stages of a pipeline (``build_model`` of its ``models/base.py``).

Embedding, layers, norm, head, cast and loss stand in a row. A layer costs 4 hidden^2 + 3 hidden ffn, the head hidden
times vocabulary, all else nothing. A block goes to the present stage, and where the cost so far is then above this
stage's even share of the whole, the next block begins the next stage. So the first stage has more layers than others,
and where the head is dear the last stages may be left without a block.
"""

from __future__ import annotations

from dataclasses import dataclass

EMBEDDING, LAYER, HEAD = "embedding", "layer", "head"


@dataclass(frozen=True)
class StageBlocks:
    """Names the blocks of a stage, and adds up their costs."""

    blocks: tuple[str, ...]
    cost: int

    @property
    def layers(self) -> int:
        return self.blocks.count(LAYER)

    @property
    def embeds(self) -> bool:
        return EMBEDDING in self.blocks

    @property
    def head(self) -> bool:
        """Tells whether it makes logits."""
        return HEAD in self.blocks


def stages_of(layers: int, stages: int, layer_cost: int, head_cost: int) -> tuple[StageBlocks, ...]:
    """Returns the stages of a model, in their order."""
    costs = [(EMBEDDING, 0), *((LAYER, layer_cost),) * layers, ("norm", 0), (HEAD, head_cost), ("cast", 0), ("loss", 0)]
    whole, so_far, stage = layers * layer_cost + head_cost, 0, 0
    blocks: list[list[tuple[str, int]]] = [[] for _ in range(stages)]
    for block, cost in costs:
        blocks[stage].append((block, cost))
        so_far += cost
        stage += so_far * stages > whole * (stage + 1)
    return tuple(
        StageBlocks(tuple(name for name, _ in of_stage), sum(cost for _, cost in of_stage)) for of_stage in blocks
    )
