"""Which tensors of a model are sparse."""

import pytest
import torch
from torch import nn, optim

from regrow.sparsifier.layers import choose_layers


def sgd(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.1)


def chosen(model: nn.Module, selection=None, optimizer=None, granularity="weight", **options) -> list[str]:
    pairs, _ = choose_layers(model, optimizer or sgd(model), selection, granularity, **options)
    everything = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(id(parameter) in everything for _, parameter in pairs)
    return [layer.name for layer, _ in pairs]


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")


class TiedLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


# What is sparse by itself


def test_weights_of_linear_and_convolution_layers_but_no_norms_and_biases():
    assert chosen(net()) == ["0.weight", "4.weight"]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 2, 3),
        nn.Conv3d(2, 2, 3),
        nn.ConvTranspose2d(2, 2, 3),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Linear(2, 2),
    ],
)
def test_every_kind_of_convolution_counts(layer):
    assert chosen(nn.Sequential(layer)) == ["0.weight"]


@pytest.mark.parametrize("layer", [nn.Embedding(8, 2), nn.EmbeddingBag(8, 2), nn.LayerNorm(8), nn.PReLU(8)])
def test_embeddings_and_norms_stay_dense(layer):
    assert chosen(nn.Sequential(layer, nn.Linear(2, 2))) == ["1.weight"]


def test_attention_projections_in_one_piece():
    assert chosen(nn.MultiheadAttention(4, 2, add_bias_kv=True)) == ["in_proj_weight", "out_proj.weight"]


def test_attention_projections_apart():
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert chosen(nn.MultiheadAttention(4, 2, kdim=3, vdim=5)) == names


def test_a_subclass_of_linear_is_linear():
    class Mine(nn.Linear):
        pass

    assert chosen(nn.Sequential(Mine(2, 2))) == ["0.weight"]


def test_layers_come_with_their_parameters_in_the_order_of_the_model():
    model = net()
    pairs, _ = choose_layers(model, sgd(model), ["4.weight", "0.weight"], "weight")
    assert [(layer.name, layer.shape) for layer, _ in pairs] == [("0.weight", (4, 3, 3, 3)), ("4.weight", (2, 16))]
    assert pairs[0][1] is model[0].weight


# Tied, frozen and absent


def test_tied_linear_layers_count_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert chosen(model) == ["0.weight"]


def test_a_linear_layer_tied_to_an_embedding_stays_dense():
    assert chosen(TiedLanguageModel()) == ["body.weight"]


def test_unless_it_is_named_by_its_first_name():
    assert chosen(TiedLanguageModel(), ["embed.weight"]) == ["embed.weight"]


def test_the_second_name_of_a_tied_weight_is_answered_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no layer matches 'head.weight'.*'embed.weight'"):
        chosen(TiedLanguageModel(), "head.weight")


def test_frozen_layers_are_left_out():
    model = net()
    model[0].weight.requires_grad_(False)
    assert chosen(model) == ["4.weight"]


def test_layers_the_optimizer_does_not_hold_are_left_out():
    model = net()
    assert chosen(model, optimizer=optim.SGD(model[0].parameters(), lr=0.1)) == ["0.weight"]


def test_layers_in_any_parameter_group_count():
    model = net()
    groups = [{"params": model[4].parameters()}, {"params": model[0].parameters(), "lr": 1.0}]
    assert chosen(model, optimizer=optim.SGD(groups, lr=0.1)) == ["0.weight", "4.weight"]


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(
        ValueError, match="the optimizer holds none of the model's parameters; build it from this model"
    ):
        chosen(net(), optimizer=sgd(net()))


def test_a_model_without_anything_to_make_sparse_is_refused():
    with pytest.raises(ValueError, match="no layer to make sparse that trains"):
        chosen(nn.Sequential(nn.LayerNorm(8)))


# Chosen by the user


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("4.weight", ["4.weight"]),
        (["0.weight", "1.weight"], ["0.weight", "1.weight"]),
        (("*.weight",), ["0.weight", "1.weight", "4.weight"]),
        ({"0.*"}, ["0.weight", "0.bias"]),
        ((name for name in ["4.weight"]), ["4.weight"]),
        (["0.weight", "0.weight", "0.w*"], ["0.weight"]),
        (lambda name, parameter: parameter.ndim == 4, ["0.weight"]),
        (lambda name, parameter: name.startswith("4"), ["4.weight"]),
    ],
)
def test_names_patterns_or_a_function(selection, names):
    assert chosen(net(), selection) == names


def test_a_pattern_passes_over_what_does_not_train():
    model = net()
    model[0].weight.requires_grad_(False)
    assert chosen(model, "*.weight") == ["1.weight", "4.weight"]


def test_a_function_is_asked_only_about_usual_layers_that_train():
    model, asked = net(), []
    chosen(model, lambda name, parameter: asked.append(name) or True)
    model[0].requires_grad_(False)
    chosen(model, lambda name, parameter: asked.append(name) or True)
    assert asked == ["0.weight", "4.weight", "4.weight"]


@pytest.mark.parametrize(
    ("exclude", "names"),
    [
        ("4", ["0.weight"]),
        (["4.weight"], ["0.weight"]),
        (["0.*"], ["4.weight"]),
        (["1"], ["0.weight", "4.weight"]),
    ],
)
def test_what_stays_dense_is_named_by_layer_or_module(exclude, names):
    assert chosen(net(), None, exclude=exclude) == names


def test_a_module_is_left_out_with_all_that_is_in_it():
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "head": nn.Linear(4, 2)})
    assert chosen(model, None, exclude=["body"]) == ["head.weight"]
    assert chosen(model, ["*.weight"], exclude=["body.1"]) == ["body.0.weight", "head.weight"]
    assert chosen(model, lambda name, parameter: "body" in name, exclude=["*.0"]) == ["body.1.weight"]


def test_leaving_out_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"no layer matches 'haed'; did you mean 'head'"):
        chosen(nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 2)}), None, exclude=["haed"])
    with pytest.raises(TypeError, match="exclude must be names or glob patterns, of layers or modules, got 4"):
        chosen(net(), None, exclude=4)


def test_a_near_miss_is_suggested():
    with pytest.raises(ValueError, match=r"no layer matches '4.wight'; did you mean '4.weight'"):
        chosen(net(), "4.wight")


def test_naming_only_what_does_not_train_is_refused():
    model = net()
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'0.weight' matches only parameters that do not train"):
        chosen(model, ["0.weight", "4.weight"])


@pytest.mark.parametrize("selection", [[], lambda name, parameter: False])
def test_choosing_nothing_is_refused(selection):
    with pytest.raises(ValueError, match="no layer to make sparse"):
        chosen(net(), selection)


def test_names_must_be_strings():
    model = net()
    with pytest.raises(TypeError, match="layers must be names, glob patterns or a function, got 4"):
        chosen(model, [4])


def test_a_list_of_parameters_is_not_a_list_of_names():
    model = net()
    with pytest.raises(TypeError, match="layers must be names"):
        chosen(model, [model[0].weight])


# Wrappers


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel, lambda m: compiled(nn.DataParallel(m))])
def test_wrappers_change_no_names(wrap):
    model = wrap(net())
    assert chosen(model) == ["0.weight", "4.weight"]
    assert chosen(model, "4.*") == ["4.weight", "4.bias"]


def test_an_optimizer_built_before_wrapping_still_fits():
    model = net()
    optimizer = sgd(model)
    assert chosen(nn.DataParallel(model), optimizer=optimizer) == ["0.weight", "4.weight"]


def test_the_user_may_hand_over_the_inner_model_too():
    model = net()
    assert chosen(model, optimizer=sgd(compiled(model))) == ["0.weight", "4.weight"]


def test_a_compiled_part_keeps_its_names():
    model = net()
    model[4] = compiled(model[4])
    assert chosen(model) == ["0.weight", "4.weight"]


# Tensors without values


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_layer_must_see_a_batch_first():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0.weight has no shape yet; run one batch through the model"):
        chosen(model)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_after_a_batch_a_lazy_layer_is_like_any_other():
    model = nn.Sequential(nn.LazyLinear(3))
    model(torch.zeros(1, 2))
    assert chosen(model) == ["0.weight"]


def test_parameters_on_the_meta_device_are_refused():
    model = nn.Sequential(nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match=r"0.weight is on the meta device.*to_empty"):
        chosen(model)


def test_parameters_without_weights_are_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    model.extra = nn.Parameter(torch.empty(0, 3))
    with pytest.raises(ValueError, match="extra is not an ordinary tensor with at least one weight"):
        chosen(model, "extra")


def test_whole_numbers_are_no_weights():
    model = nn.Sequential(nn.Linear(2, 2))
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    assert chosen(model, lambda name, parameter: name != "0.bias") == ["0.weight"]


# Units


def test_units_are_cut_as_asked():
    model = net()
    ((conv, _), (linear, _)), _ = choose_layers(model, sgd(model), None, "kernel")
    assert (conv.num_units, conv.unit_size) == (12, 9)
    assert (linear.num_units, linear.unit_size) == (32, 1)


def test_channels_are_outputs_also_of_transposed_convolutions():
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ConvTranspose2d(5, 3, 2))
    sizes = [layer.num_units for layer, _ in choose_layers(model, sgd(model), None, "channel")[0]]
    assert sizes == [5, 3]


def test_a_grouped_transposed_convolution_has_no_single_channel_dimension():
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=2))
    with pytest.raises(ValueError, match=r"0.weight is a grouped transposed convolution"):
        chosen(model, granularity="channel")
    assert chosen(model, granularity="kernel") == ["0.weight"]


def test_channels_last_weights_are_numbered_as_they_lie_in_memory():
    model = net().to(memory_format=torch.channels_last)
    ((layer, parameter), *_), _ = choose_layers(model, sgd(model), None, "weight")
    assert layer.flatten(parameter.detach()).data_ptr() == parameter.data_ptr()
