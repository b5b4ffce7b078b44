"""DOTA's loads of keys by hand, zeros that it rounds, and keys of a cache, which it refuses."""

import pytest
import torch

from suite.loop.stack import Stack
from techniques.attention.dota.loads import in_order, out_of_order
from techniques.attention.dota.technique import Dota, fake_quantised
from tests.model.further_models import further_run


def test_out_of_order_serves_what_most_share_first():
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]).bool()
    assert in_order(mask, 3) == 5  # 0 and twice 1, then 1, 2 and 3
    assert out_of_order(mask, 3) == 4  # 1 for all, then 0, 2 and 3
    whole = torch.ones(4, 6, dtype=torch.bool)
    assert out_of_order(whole, 4) == in_order(whole, 4) == 6
    with pytest.raises(ValueError, match="1 query or more"):
        in_order(mask, 0)


def test_zeros_are_rounded_to_zeros():
    assert not fake_quantised(torch.zeros(3), 4).any()


def test_keys_of_a_cache_are_refused_and_whole_rows_are_not():
    run = further_run("gpt2", Stack({"dota": Dota()}))
    model, rows = run.model.eval(), torch.arange(3, 11)[None]
    with torch.no_grad():
        whole = model(rows, use_cache=True)
        torch.testing.assert_close(model(rows, use_cache=False).logits, whole.logits)
        with pytest.raises(ValueError, match=r"1 came into .* for 1 queries and 9 keys: .* use_cache=False"):
            model(rows[:, :1], past_key_values=whole.past_key_values, use_cache=True)
