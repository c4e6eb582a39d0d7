"""What stays dense is said: in every summary, and by a warning where most of a model does and nobody chose that."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import regrow
from two_layers import sgd, two_layers

SET = regrow.SET(sparsity=0.8, period=2)


def left_dense(model, **options):
    """The last lines of the summary of a model that was made sparse."""
    text = regrow.attach(model, sgd(model), options.pop("method", SET), **options).summary()
    return text[text.index("left dense") :].splitlines() if "left dense" in text else []


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.body, self.head = kind(8, 16), nn.Linear(16, 4)


# The summary


def test_the_summary_counts_what_trains_and_stays_dense():
    assert left_dense(two_layers()) == ["left dense: 2 tensors, 40 weights (largest: 0.bias)"]


def test_what_was_not_chosen_is_told_too():
    assert left_dense(two_layers(), layers=["2.weight"]) == ["left dense: 3 tensors, 640 weights (largest: 0.weight)"]


def test_frozen_weights_are_not_left_dense_by_us():
    model = two_layers()
    model[0].bias.requires_grad_(False)
    assert left_dense(model) == ["left dense: 1 tensor, 10 weights (largest: 2.bias)"]


def test_a_model_that_is_sparse_throughout_has_nothing_to_tell():
    assert left_dense(nn.Sequential(nn.Linear(8, 8, bias=False))) == []


def test_what_blocks_do_not_divide_is_named():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 3, bias=False))
    method = regrow.SET(sparsity=0.5, period=2, granularity="4x4")
    assert left_dense(model, method=method) == [
        "left dense: 1 tensor, 24 weights (largest: 1.weight)",
        "dense because blocks do not divide them: 1.weight",
    ]


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_of_attention_only_biases_are_left_dense(storage):
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 32))
    assert left_dense(model, storage=storage) == ["left dense: 3 tensors, 64 weights (largest: 1.bias)"]


def test_a_copy_tells_the_same():
    import copy

    model = two_layers()
    optimizer = sgd(model)
    sparse = regrow.attach(model, optimizer, SET)
    twin = copy.deepcopy((model, optimizer, sparse))[2]
    assert twin.summary() == sparse.summary()


# The warning


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_body_beside_a_head_is_warned_about(kind):
    model = Recurrent(kind)
    with pytest.warns(UserWarning, match=r"weights in matrices stay dense \(largest: body.weight_hh_l0\).* layers="):
        regrow.attach(model, sgd(model), SET)


@pytest.mark.parametrize(("norm", "counts"), [(weight_norm, "630 of 780"), (spectral_norm, "600 of 750")])
def test_weights_computed_from_others_are_warned_about(norm, counts):
    model = nn.Sequential(norm(nn.Linear(20, 30)), nn.Linear(30, 5))
    with pytest.warns(UserWarning, match=f"{counts} weights in matrices stay dense"):
        regrow.attach(model, sgd(model), SET)


def test_experts_in_one_tensor_are_warned_about():
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**size, **heads))
    with pytest.warns(UserWarning, match=r"stay dense \(largest: model.layers.0.mlp.experts.gate_up_proj\).* layers="):
        sparse = regrow.attach(model, sgd(model), SET)
    assert "left dense" in sparse.summary()


def test_the_warning_names_the_line_that_attached(recwarn):
    model = Recurrent()
    warnings.simplefilter("always")
    regrow.attach(model, sgd(model), SET)
    assert recwarn.pop(UserWarning).filename == __file__


def test_a_warning_that_is_an_error_leaves_everything_as_it_was():
    model = Recurrent()
    optimizer = sgd(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(UserWarning, match="stay dense"):
        regrow.attach(model, optimizer, SET)
    assert all(map(torch.equal, model.parameters(), before))
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("layers", [["head.weight"], ["*weight*"], lambda name, own: own.ndim == 2])
def test_who_chooses_layers_is_not_warned(layers):
    model = Recurrent()
    regrow.attach(model, sgd(model), SET, layers=layers)


def test_half_is_not_most():
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    regrow.attach(model, sgd(model), SET)


# Frozen models


class Adapted(nn.Module):
    """A frozen layer with two small ones beside it, as LoRA has them."""

    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(64, 64), nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.base.requires_grad_(False)


def test_a_model_whose_base_is_frozen_is_told_so():
    model = Adapted()
    with pytest.warns(UserWarning, match=r"4,096 of 4,608 weights in matrices are frozen.* only the 512 others"):
        sparse = regrow.attach(model, sgd(model), SET)
    assert [layer.name for layer in sparse.layers] == ["down.weight", "up.weight"]


def test_a_model_that_is_frozen_whole_but_for_a_norm_is_refused_with_the_reason():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    for number in (0, 2):
        model[number].requires_grad_(False)
    with pytest.raises(ValueError, match=r"no layer to make sparse that trains \(2 are frozen, or not held by the opt"):
        regrow.attach(model, sgd(model), SET)
