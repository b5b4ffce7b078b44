import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from suite.meters.activations import SavedActivations
from tests.meters.models import Transformer, tokens


def saved(model, *batch):
    with SavedActivations(model) as meter:
        model(*batch).sum().backward()
    return meter.saved_bytes


def test_each_storage_once_and_parameters_never():
    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8, requires_grad=True)
    with SavedActivations(model) as meter:
        y = model(x).exp()  # saves x, the weight; its output
        (y * y.view(8, 4).view(4, 8)).sum().backward()  # saves the same output twice
    assert meter.saved_bytes == x.nbytes + y.nbytes


def test_parameters_that_point_elsewhere_are_no_activations_either():
    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8, requires_grad=True)
    with SavedActivations(model) as meter:
        model.weight.data = model.weight.data.clone()
        model(x).sum().backward()
    assert meter.saved_bytes == x.nbytes


def test_fused_attention_saves_no_scores():
    """The written-out one saves the scores after the softmax; the fused one a number for each of their rows."""
    b, t, h, layers = 4, 64, 4, 2
    scores = layers * b * h * t * t * 4
    written_out, fused = (saved(Transformer(fused=f), tokens(b, t)) for f in (False, True))
    row_sums = layers * b * h * t * 4
    assert written_out - fused == scores - row_sums


def test_a_checkpoint_keeps_its_inputs():
    model = Transformer(checkpointed=True)
    plain = saved(Transformer(), tokens())
    block_input = 4 * 64 * 32 * 4
    head = Transformer()
    head.blocks = nn.ModuleList()
    outside_blocks = saved(head, tokens())
    # The last block's output stands in for the embedding's as the head's input.
    assert saved(model, tokens()) == outside_blocks + 2 * block_input
    assert saved(model, tokens()) < plain


def test_a_technique_s_own_hooks_are_counted_by_what_they_pack_and_still_work():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(4, 8)
    used = []

    def pack(tensor):
        return {"half": tensor.detach().to(torch.bfloat16)}

    def unpack(packed):
        used.append(1)
        return packed["half"].float()

    with SavedActivations(model) as meter:
        with saved_tensors_hooks(pack, unpack):
            y = model(x)
        y.sum().backward()
    # The hooks pack each saved tensor anew: the middle one twice, and the last weight, which so is a parameter no more.
    assert meter.saved_bytes == 2 * (x.numel() + 2 * 4 * 8 + 8)
    assert used


def test_hooks_are_as_before_afterwards():
    enter, leave = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__
    disable = torch.autograd.graph.disable_saved_tensors_hooks
    with pytest.raises(ValueError, match="inside"), SavedActivations():
        raise ValueError("inside")
    assert (saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__) == (enter, leave)
    assert torch.autograd.graph.disable_saved_tensors_hooks is disable
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks may be left"):
        pass


def test_functional_transforms_run_under_it_and_counting_goes_on_after_them():
    x = torch.randn(5, requires_grad=True)
    with SavedActivations() as meter:
        per_sample = torch.func.vmap(torch.func.grad(lambda w: w.exp()))(torch.zeros(3))
        assert meter.saved_bytes == 0
        x.exp()
    assert per_sample.tolist() == [1, 1, 1]
    assert meter.saved_bytes == x.nbytes


def test_gradients_of_gradients_are_as_without_it():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def second():
        y = (x.exp() * x.sin()).tanh().sum()
        (once,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(once.square().sum(), x)[0]

    with SavedActivations():
        inside = second()
    assert torch.equal(inside, second())


def step_in(passes):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 8)
    with SavedActivations(model) as meter:
        for part in x.chunk(passes):
            model(part).square().mean().backward()
    return meter.saved_bytes - x.nbytes  # parts of the batch share its storage


def test_micro_batches_hold_one_of_them_at_a_time():
    assert step_in(passes=4) * 4 == step_in(passes=1) > 0


def test_a_pass_that_comes_again_is_not_held_twice():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 8)

    def saved_by(passes):
        with SavedActivations(model) as meter:
            for _ in range(passes):  # the loss, and so the last output, is there until the next pass has come
                loss = model(x).square().mean()
                loss.backward()
        return meter.saved_bytes

    assert saved_by(2) == saved_by(1)


def test_graphs_that_are_there_at_once_are_held_at_once():
    model, x = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh()), torch.randn(16, 8)
    with SavedActivations(model) as meter:
        first = model(x)
        second = model(x)
        first.sum().backward(retain_graph=True)  # and so stays
        third = model(x)
        (second.sum() + third.sum()).backward()
    assert meter.saved_bytes == x.nbytes + 3 * first.nbytes


def test_a_dropped_graph_is_held_no_more_and_a_late_one_outlives_the_window():
    x = torch.randn(100, requires_grad=True)
    with SavedActivations() as meter:
        for _ in range(3):
            y = x.exp()
    assert meter.saved_bytes <= 2 * y.nbytes
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())
