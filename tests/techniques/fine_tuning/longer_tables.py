"""A model with room for more positions: what numbers rows from 0 on, as peft does, reads the text where it stood."""

import copy

import torch
from torch import nn


def with_longer_table(model: nn.Module, rows: int) -> nn.Module:
    """The same model in evaluation, with ``rows`` more positions before its own, all like its first."""
    config = copy.deepcopy(model.config)
    config.max_position_embeddings += rows
    longer = type(model)(config).eval()
    state = dict(model.state_dict())
    for name, table in longer.state_dict().items():
        if table.shape != state[name].shape:
            state[name] = torch.cat([state[name][:1].expand(rows, -1), state[name]])
    longer.load_state_dict(state)
    return longer
