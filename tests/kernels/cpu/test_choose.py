"""Sparse or dense: which way a layer is computed."""

import subprocess
import sys
from time import sleep

import pytest
import torch
from torch import nn

import regrow
from regrow.kernels.cpu import choose
from regrow.kernels.cpu.choose import Choices, case_of
from regrow.kernels.cpu.planes import Convolution
from regrow.storage.packed import compute
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


@pytest.mark.parametrize("slow", ["sparse", "dense"])
@pytest.mark.parametrize("how", [None, Convolution((3, 3), (1, 1), (1, 1), (1, 1))], ids=["linear", "convolution"])
def test_the_faster_way_is_chosen(how, slow, monkeypatch):
    forward = getattr(choose, f"{slow}_forward")

    def slow_forward(*arguments):
        sleep(0.05)
        return forward(*arguments)

    monkeypatch.setattr(choose, f"{slow}_forward", slow_forward)
    monkeypatch.setattr(choose, "_measured", {})
    layer = random_layer(8, 8, density=0.1) if how is None else random_layer(8, 8, 3, 3, density=0.1)
    x = random_tensor(2, 8) if how is None else random_tensor(2, 8, 6, 6)
    assert Choices().way(layer.pattern, x, how) == ("dense" if slow == "sparse" else "sparse")


@pytest.mark.parametrize("how", [None, Convolution((3, 3), (1, 1), (1, 1), (1, 1))], ids=["linear", "convolution"])
def test_where_nobody_goes_back_the_way_back_does_not_count(how, monkeypatch):
    def never(*arguments):
        raise AssertionError

    for function in ("sparse_backward", "dense_input_gradient", "dense_weight_gradient"):
        monkeypatch.setattr(choose, function, never)
    monkeypatch.setattr(choose, "_measured", {})
    layer = random_layer(8, 8, density=0.1) if how is None else random_layer(8, 8, 3, 3, density=0.1)
    x = random_tensor(2, 8) if how is None else random_tensor(2, 8, 6, 6)
    choices = Choices(goes_back=False)
    assert choices.way(layer.pattern, x, how) in ("sparse", "dense")
    assert len(choices.state()) == 1
    with pytest.raises(AssertionError):
        Choices().way(layer.pattern, x, how)


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_the_dense_way_that_is_timed_is_the_one_that_a_layer_goes(name, monkeypatch):
    calls = []

    def listen_to(file, function):
        own = getattr(file, function)

        def listening(*arguments):
            told = [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in arguments]
            calls.append((function, told))
            return own(*arguments)

        monkeypatch.setattr(file, function, listening)

    for file in (choose, compute):
        for function in ("dense_forward", "dense_input_gradient", "dense_weight_gradient"):
            listen_to(file, function)
    how = Convolution((3, 3), (1, 1), (1, 1), (1, 1), groups=2) if name == "convolution" else None
    x = random_tensor(4, 8, 6, 6) if how else random_tensor(4, 8)
    layer = random_layer(8, 4, 3, 3, density=0.5) if how else random_layer(8, 8, density=0.5)
    choose._compute_dense(layer.pattern, layer.values, x, how)
    timed = calls.copy()

    module = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False) if how else nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(module.double().parameters(), lr=0.1)
    regrow.attach(module, optimizer, regrow.Static(sparsity=0.5), storage=regrow.Packed(kernels="dense"))
    module(x.requires_grad_()).sum().backward()
    assert calls == 2 * timed


def test_numba_is_imported_only_where_it_is_used():
    code = "import sys, regrow; assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
