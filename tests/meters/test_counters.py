import pytest
import torch
from pydantic import ValidationError

from suite.meters.counters import count_step
from suite.meters.flops import FlopCounter
from suite.meters.tensors import TensorBytes
from suite.record.schema import Counters
from tests.meters.models import Transformer, tokens, train_step


def counted(fused=False, checkpointed=False):
    torch.manual_seed(0)
    model = Transformer(fused, checkpointed)
    optimizer, batch = torch.optim.AdamW(model.parameters()), tokens()
    train_step(model, optimizer, batch)
    return count_step(lambda: train_step(model, optimizer, batch), model, optimizer, batch)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_nested_counters_agree_with_each_alone(checkpointed):
    def setup():
        model = Transformer(checkpointed=checkpointed)
        optimizer, batch = torch.optim.AdamW(model.parameters()), tokens()
        train_step(model, optimizer, batch)
        return model, optimizer, batch

    nested = counted(checkpointed=checkpointed)
    assert nested == counted(checkpointed=checkpointed)
    arguments = setup()
    with TensorBytes().seed(*arguments) as tensors:
        train_step(*arguments)
    with FlopCounter() as flops:
        train_step(*arguments)
    assert nested.peak_by_kind == tensors.peak_by_kind
    assert nested.operators == tensors.operators
    assert nested.flops == flops.total


def test_fused_attention_saves_memory_and_not_flops():
    plain, fused = counted(), counted(fused=True)
    assert fused.saved_activation_bytes < plain.saved_activation_bytes
    assert fused.peak_tensor_bytes < plain.peak_tensor_bytes
    # One product of scores more for each layer: see the flops module.
    assert fused.flops == plain.flops + 2 * (2 * 4 * 4 * 64 * 64 * 8)
    assert not fused.uncounted_operators


def test_the_rest_of_the_fields():
    counters = counted()
    assert counters.optimizer_state_bytes == 8 * counters.parameter_count
    assert counters.parameter_count == counters.trainable_parameter_count
    assert sum(counters.peak_by_kind.values()) == counters.peak_tensor_bytes
    assert (counters.semantics, counters.compiled) == ("eager", False)
    with pytest.raises(ValidationError, match="frozen"):
        counters.flops = 0


def test_a_line_that_was_stored_before_there_were_ranks_is_of_one():
    stored = counted().model_dump(exclude={"ranks"})
    assert Counters.model_validate(stored).ranks == 1
    assert Counters.model_validate({**stored, "uncounted_operators": {"aten.x": 1}}).uncounted_operators == {
        "aten.x": 1
    }


def test_a_failing_step_fails_and_leaves_nothing_behind():
    model = Transformer()

    def step():
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        count_step(step, model, torch.optim.SGD(model.parameters()), None)
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert counted() == counted()
