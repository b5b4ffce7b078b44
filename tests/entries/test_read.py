"""How well the statements of the claims are known: where they were read, and which nobody could read."""

from __future__ import annotations

import pytest

from suite.entries.card import Card, CardError, read_card
from suite.entries.catalogue import catalogue
from suite.entries.scaffold import CARD

CARDS: dict[str, Card] = {id: entry.card for id, entry in catalogue().items()}
PLACES = {
    "albert_sharing.eighteen_times_fewer": "Section 3.2; table 1",
    "amp_fp16.sixteen_bytes": "ZeRO (arXiv 1910.02054), section 3.1",
    "arora_depth.trained_parameters": "Authors' blog: implicit dynamics of depth",
    "capuchin.hidden_is_free": "Section 4.5, as two accounts quote it",
    "checkmate_milp.larger_inputs": "Abstract; section 6.4; figure 6",
    "earlybert.comparable_quality": "Abstract",
    "earlybert.removed_parameters": "Authors' code: finetune/modeling_bert.py",
    "gact.same_quality": "Abstract; authors' code: gact/conf.py, level L1",
    "grasp.quality": "Abstract",
    "int8_mixed.torchao_llama": "README of torchao: prototype/quantized_training",
    "intrinsic_dim.fewer_trainable_parameters": "Abstract; table 1",
    "intrinsic_dim.near_full_fine_tuning": "Abstract; table 1",
    "kusumoto_dp.blocks_run_again": "Authors' poster, our algorithm",
    "l2l.one_layer_on_the_device": "Abstract",
    "lawa.quality": "Abstract; authors' README",
    "onebit_sgd.no_loss": "Section 5.2; table 2",
    "overparam_generalization.generalises": "Abstract",
    "pipedream_2bw.late_last": "Section 3.1 (Semantics)",
    "pipedream_2bw.versions_first": "Section 3.1; figure 2",
    "prompt_tuning.behind_model_tuning_when_small": "Figure 1; abstract",
    "rezero.none_trains_without": "Authors' notebooks",
    "sam.quality_per_time": "Section 3.1; tables 1 and 2",
    "snip.lenet": "Section 5.2; table 1",
    "swapadvisor.nothing_runs_again": "Abstract, implied",
    "tp_megatron.forward_reductions": "Section 3; figure 4",
    "train_large_compress.better_at_equal_cost": "Abstract",
    "vdnn.within_budget": "Abstract",
    "zero2.larger_models": "Abstract; section 10",
    "zero_infinity_param.gradients_once": "Section 4.1, as two accounts quote it",
    "zero_infinity_param.nothing_between_steps": "Authors' slides of SC21, 6",
}
"""Of thirty claims, drawn at random, where whoever had the texts found the statement."""


def test_thirty_claims_drawn_at_random_were_read_where_the_texts_have_them() -> None:
    said = {f"{id}.{claim.id}": claim.read for id, card in CARDS.items() for claim in card.claim}
    assert {name: said[name] for name in PLACES} == PLACES


def test_few_claims_are_unread_and_each_says_what_was_tried() -> None:
    unread = {f"{id}.{claim.id}": claim.unread for id, card in CARDS.items() for claim in card.claim if not claim.read}
    assert len(unread) <= 60
    assert [name for name, tried in unread.items() if len(tried.split()) < 5] == []


def test_what_the_suite_derives_is_a_property_and_no_claim_of_a_paper() -> None:
    own = ("follows from", "this entry", "this suite", "no claim of", "arithmetic", "from memory")
    derived = [
        f"{id}.{claim.id}"
        for id, card in CARDS.items()
        for claim in card.claim
        if claim.source.lower().startswith(own) or "from memory" in claim.note
    ]
    assert derived == []


@pytest.mark.parametrize("said", ['read = "Section 3"\nunread = "section 3"\n', ""])
def test_a_claim_says_where_it_was_read_or_why_it_was_not(tmp_path, said) -> None:
    path = tmp_path / "ideas" / "idea" / "card.toml"
    path.parent.mkdir(parents=True)
    card = CARD.format(id="idea", name="Idea", category="ideas").splitlines(keepends=True)
    path.write_text("".join(said if line.startswith("unread = ") else line for line in card))
    with pytest.raises(CardError, match="same_state needs one of read and unread"):
        read_card(path)
