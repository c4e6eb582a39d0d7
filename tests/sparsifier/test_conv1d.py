"""GPT-2's own linear layer, Conv1D of `transformers`, whose output dimension is the second."""

import pytest
import torch

import regrow
from regrow.sparsifier.layers import choose_layers
from regrow.testing import check_invariants

transformers = pytest.importorskip("transformers")


def gpt2(**changes):
    torch.manual_seed(0)
    settings = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 50, **changes}
    quiet = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, **quiet))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def test_its_layers_are_found_and_the_tied_embedding_stays_dense():
    model = gpt2()
    sparse = regrow.attach(model, adamw(model), regrow.SET(sparsity=0.9))
    kinds = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
    assert {layer.name for layer in sparse.layers} == {
        f"transformer.h.{i}.{kind}.weight" for i in (0, 1) for kind in kinds
    }
    assert "largest: transformer.wte.weight" in sparse.summary()


def test_a_classifier_on_top_is_not_all_that_is_sparse():
    size = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 50}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**size, num_labels=3, pad_token_id=0))
    sparse = regrow.attach(model, adamw(model), regrow.SET(sparsity=0.9))
    assert len(sparse.layers) == 5
    assert sum(int(model.get_parameter(layer.name).count_nonzero()) for layer in sparse.layers) == sparse.budget


def test_its_channels_are_the_second_dimension():
    model = gpt2()
    chosen, _ = choose_layers(model, adamw(model), ["*.c_attn.weight"], "channel")
    assert [(layer.shape, layer.num_units, layer.unit_shape) for layer, _ in chosen] == [((32, 96), 96, (32, 1))] * 2


def test_blocks_are_rows_of_outputs_by_columns_of_inputs():
    model = gpt2()
    chosen, _ = choose_layers(model, adamw(model), ["*.c_attn.weight"], regrow.Block(8, 2))
    assert chosen[0][0].unit_shape == (2, 8)


@pytest.mark.parametrize("granularity", ["weight", "channel"])
@pytest.mark.parametrize("storage", ["dense", regrow.Packed(kernels="sparse")], ids=["dense", "packed"])
def test_gpt2_trains_sparsely(storage, granularity):
    if storage != "dense" and granularity != "weight":
        pytest.skip("packed storage holds single weights")
    model = gpt2()
    optimizer = adamw(model)
    sparse = regrow.attach(
        model, optimizer, regrow.RigL(sparsity=0.8, period=2, granularity=granularity), storage=storage
    )
    tokens = torch.arange(24).view(2, 12) % 50
    for _ in range(4):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        check_invariants(model, optimizer, sparse)
    assert len(sparse.history) == 2


def test_a_class_that_only_has_the_name_is_not_meant():
    class Conv1D(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))

    model = torch.nn.Sequential(Conv1D(), torch.nn.Linear(8, 8))
    chosen, _ = choose_layers(model, adamw(model), None, "weight")
    assert [layer.name for layer, _ in chosen] == ["1.weight"]
