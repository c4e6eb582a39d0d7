"""Names of parameters, patterns, and suggestions."""

import pytest
import torch
from torch import nn

from regrow.core.names import clean, match, named_parameters, suggest, unwrap

NAMES = ["stem.weight", "blocks.0.conv1.weight", "blocks.0.conv2.weight", "blocks.10.conv1.weight", "head.weight"]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in named_parameters(module)]


PLAIN = ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        compiled,
        nn.DataParallel,
        lambda m: compiled(nn.DataParallel(m)),
        lambda m: nn.DataParallel(compiled(m)),
    ],
)
def test_wrappers_leave_no_trace_in_names(wrap):
    inner = model()
    assert names(wrap(inner)) == PLAIN
    assert unwrap(wrap(inner)) is inner


def test_a_compiled_part_keeps_its_name():
    net = model()
    net[2] = compiled(net[2])
    assert names(net) == PLAIN


def test_a_users_own_attribute_called_module_is_no_wrapper():
    net = nn.Module()
    net.module = nn.Linear(2, 2, bias=False)
    assert names(net) == ["module.weight"]
    assert unwrap(net) is net


def test_tied_parameters_appear_once_under_their_first_name():
    net = model()
    net.append(nn.Linear(3, 2, bias=False))
    net[3].weight = net[2].weight
    assert names(net) == PLAIN


def test_clean_drops_what_compilation_puts_in():
    assert clean("_orig_mod.a._orig_mod.weight") == "a.weight"
    assert clean("my_orig_mod.weight") == "my_orig_mod.weight"


def test_clean_drops_what_fabric_and_fsdp_put_in():
    assert clean("_forward_module.a._fsdp_wrapped_module.weight") == "a.weight"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("stem.weight", ["stem.weight"]),
        ("blocks.0.*", ["blocks.0.conv1.weight", "blocks.0.conv2.weight"]),
        ("*.conv1.weight", ["blocks.0.conv1.weight", "blocks.10.conv1.weight"]),
        ("blocks.?.conv1.weight", ["blocks.0.conv1.weight"]),
        ("[sh]*", ["stem.weight", "head.weight"]),
        ("*", NAMES),
    ],
)
def test_patterns_match_whole_names(pattern, found):
    assert match(pattern, NAMES) == found


@pytest.mark.parametrize("pattern", ["stem", "Stem.weight", "conv1.weight", ""])
def test_part_of_a_name_or_another_case_is_no_match(pattern):
    with pytest.raises(ValueError, match="no layer matches"):
        match(pattern, NAMES)


def test_a_near_miss_is_suggested():
    with pytest.raises(ValueError, match=r"no layer matches 'steam.weight'; did you mean 'stem.weight'"):
        match("steam.weight", NAMES)


def test_at_most_three_suggestions_are_made():
    assert suggest("blocks.1.conv1.weight", NAMES).count("' or '") == 2


def test_where_nothing_is_near_what_there_is_is_listed():
    assert suggest("zzz", ["a", "b"]) == "there are: a, b"
    assert suggest("zzz", []) == "there are none"


def test_long_lists_are_cut_short():
    assert suggest("zzz", [str(i) for i in range(11)]) == "there are: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
