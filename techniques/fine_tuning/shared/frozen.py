"""Parameter-efficient tuning: the pre-trained model is frozen, but for the output layer of a new task.

For ``bitfit``, ``adapter_houlsby``, ``intrinsic_dim``, ``prompt_tuning``, ``prefix_tuning`` and ``vpt``, which train a
few parameters beside it.
"""

from __future__ import annotations

from suite.model.anatomy import Anatomy, Part, weight_matrix


def new_heads(parts: Anatomy) -> tuple[Part, ...]:
    """Returns the output layers whose classes are of the task. A language model's are the pre-trained tokens: its
    matrix has the shape of a table of embeddings, and often is one."""
    tables = {table.module.weight.shape for table in parts.embeddings}
    return tuple(head for head in parts.head if weight_matrix(head.module).shape not in tables)


def freeze(parts: Anatomy) -> None:
    """From now on no parameter of the model is trained, but those of its :func:`new_heads`."""
    heads = new_heads(parts)
    parts.model.requires_grad_(False)
    for head in heads:
        head.module.requires_grad_(True)
