import copy

import pytest
import torch
from torch import nn

from suite.meters.state import gradient_bytes, parameter_bytes, parameter_count, state_bytes, state_tensors
from suite.meters.storage import tensors_within, unique_bytes
from tests.meters.models import Transformer, tokens, train_step


def stepped(optimizer_class, **options):
    model = nn.Linear(10, 20)
    optimizer = optimizer_class(model.parameters(), **options)
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("optimizer_class", "options", "bytes_per_parameter"),
    [
        (torch.optim.SGD, {"lr": 0.1}, 0),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 4),
        (torch.optim.AdamW, {}, 8),
        (torch.optim.AdamW, {"amsgrad": True}, 12),
        (torch.optim.AdamW, {"fused": True}, 8),
        (torch.optim.NAdam, {}, 8),
    ],
)
def test_state_bytes_are_the_textbook_s(optimizer_class, options, bytes_per_parameter):
    _, optimizer = stepped(optimizer_class, **options)
    assert state_bytes(optimizer) == bytes_per_parameter * (10 * 20 + 20)


def test_factored_state_is_rows_and_columns():
    _, optimizer = stepped(torch.optim.Adafactor)
    assert state_bytes(optimizer) == 4 * (10 + 20 + 20)


class Lookahead:
    """A wrapper that is no torch optimizer, with state of its own beside the inner one's."""

    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]
        self.fast = [p for group in inner.param_groups for p in group["params"]]

    def step(self):
        self.inner.step()


def test_wrappers_add_their_own_state_and_not_the_parameters():
    model, adam = stepped(torch.optim.AdamW)
    assert state_bytes(Lookahead(adam)) == 12 * 220
    assert state_bytes(Lookahead(Lookahead(adam))) == 16 * 220
    _, other = stepped(torch.optim.AdamW)
    assert state_bytes([adam, {"embedding": other}]) == 16 * 220
    model.zero_grad(set_to_none=True)
    assert state_bytes(Lookahead(adam)) == 12 * 220


def test_views_of_one_buffer_count_the_buffer_once():
    p = nn.Parameter(torch.zeros(6))
    optimizer = torch.optim.SGD([p])
    buffer = torch.zeros(100)
    optimizer.state[p] = {"a": buffer[:50], "b": buffer[50:], "step": torch.tensor(3)}
    assert state_bytes(optimizer) == 400
    assert sum(1 for _ in state_tensors(optimizer)) == 2


def test_tied_parameters_count_once_however_they_are_tied():
    model = Transformer()
    untied = sum(p.numel() for p in model.parameters())
    assert parameter_count(model) == untied  # torch itself knows a shared Parameter
    other = copy.deepcopy(model)
    other.head.weight = nn.Parameter(other.embed.weight.data)  # another Parameter, the same memory
    assert parameter_count(other) == untied
    assert parameter_bytes(other) == 4 * untied


def test_frozen_parameters_are_told_apart():
    model = Transformer()
    model.blocks[0].requires_grad_(False)
    frozen = sum(p.numel() for p in model.blocks[0].parameters())
    assert parameter_count(model) - parameter_count(model, trainable=True) == frozen


def test_gradient_bytes():
    model = Transformer()
    assert gradient_bytes(model) == 0
    train_step(model, torch.optim.SGD(model.parameters()), tokens())
    assert gradient_bytes(model) == parameter_bytes(model)


def test_sparse_gradients_count_what_they_store():
    embedding = nn.Embedding(1000, 8, sparse=True)
    embedding(torch.tensor([1, 2, 3])).sum().backward()
    assert gradient_bytes(embedding) == 3 * 8 * 4 + 3 * 8


def test_tensors_are_found_in_nests_and_cycles():
    class Holder:
        pass

    holder = Holder()
    holder.itself, holder.parts = holder, {"a": [torch.zeros(2)], "b": (torch.zeros(3), None, "text")}
    assert unique_bytes(tensors_within(holder)) == 20
    assert unique_bytes(tensors_within(nn.Linear(2, 2))) == 0
