"""Sparse or dense: which way a layer is computed."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from regrow.kernels.cpu.choose import Choices, case_of, convolution_of, covers
from regrow.kernels.cpu.planes import Convolution
from sparse_layers import random_layer, random_tensor

VERY_SPARSE = random_layer(256, 256, density=0.001, dtype=torch.float32)


def test_what_is_forced_is_not_measured():
    choices = Choices(forced="dense")
    assert choices.way(VERY_SPARSE.pattern, torch.zeros(64, 256)) == "dense"
    assert choices.state() == {}


def test_a_choice_is_made_once_and_can_be_told():
    choices = Choices()
    x = torch.zeros(64, 256)
    way = choices.way(VERY_SPARSE.pattern, x)
    assert choices.state() == {case_of(VERY_SPARSE.pattern, x).name: way}
    assert Choices().way(VERY_SPARSE.pattern, x) == way


def test_a_loaded_choice_holds_whatever_would_be_measured():
    x = torch.zeros(64, 256)
    name = case_of(VERY_SPARSE.pattern, x).name
    for way in ("sparse", "dense"):
        choices = Choices()
        choices.load({name: way})
        assert choices.way(VERY_SPARSE.pattern, x) == way


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match="sparse"):
        Choices().load({"linear": "fast"})


def test_small_changes_are_the_same_case():
    one, other = random_layer(50, 80, density=0.1), random_layer(50, 80, density=0.1, seed=1)
    assert one.pattern.num_entries != other.pattern.num_entries
    assert case_of(one.pattern, random_tensor(100, 80)) == case_of(other.pattern, random_tensor(128, 80))
    assert case_of(one.pattern, random_tensor(100, 80)) != case_of(one.pattern, random_tensor(129, 80))
    assert case_of(one.pattern, random_tensor(2, 50, 80)) == case_of(one.pattern, random_tensor(100, 80))


def test_a_convolution_is_chosen_for_too():
    layer = random_layer(8, 8, 3, 3, density=0.1, dtype=torch.float32)
    convolution = Convolution((3, 3), (1, 1), (1, 1), (1, 1))
    assert Choices().way(layer.pattern, torch.zeros(2, 8, 6, 6), convolution) in ("sparse", "dense")


@pytest.mark.parametrize(
    ("module", "padding"),
    [
        (nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2), (2, 2)),
        (nn.Conv1d(4, 4, 5, padding="same"), (2,)),
        (nn.Conv3d(4, 4, 3, padding="valid"), (0, 0, 0)),
    ],
)
def test_convolutions_that_are_covered(module, padding):
    assert covers(module, torch.zeros(1))
    found = convolution_of(module)
    assert found is not None
    assert found.padding == padding


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 2, padding="same"),  # one more pixel on the right than on the left
        nn.ConvTranspose2d(4, 4, 3),
        nn.Embedding(4, 4),
    ],
)
def test_layers_that_are_not(module):
    assert not covers(module, torch.zeros(1))


def test_half_precision_is_left_to_torch():
    assert covers(nn.Linear(2, 2), torch.zeros(1, 2))
    assert not covers(nn.Linear(2, 2), torch.zeros(1, 2, dtype=torch.bfloat16))


def test_numba_is_imported_only_where_it_is_used():
    code = "import sys, regrow; assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
