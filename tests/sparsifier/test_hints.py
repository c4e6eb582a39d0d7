"""What is allowed and rarely meant is said, once, where attach was called."""

import warnings

import pytest
from torch import nn

import regrow
from every_method import EVERY_STEP
from two_layers import sgd, two_layers


def hints(model, method, **options) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regrow.attach(model, sgd(model), method, **options)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", ["RigL", "SNFS", "MEST"])
def test_a_fraction_that_should_fall_and_does_not(name):
    method = regrow.METHODS[name]
    (said,) = hints(two_layers(), method(sparsity=0.8))
    assert said.startswith(f"{name} moves as much to the end of training as at the start, since it has until=None")
    assert hints(two_layers(), method(sparsity=0.8, until=100)) == []


@pytest.mark.parametrize("name", ["DSR", "SET", "Static", "Gradual", "GraNet", *EVERY_STEP])
def test_others_need_no_end_or_have_one(name):
    assert hints(two_layers(), regrow.METHODS[name](sparsity=0.8)) == []


def test_signals_that_fade():
    (said,) = hints(two_layers(), regrow.SET(sparsity=0.96))
    assert said.startswith("with a density of 0.04 and no norms, signals fade from layer to layer")
    assert 'rescale="density"' in said


@pytest.mark.parametrize(
    ("model", "method", "options"),
    [
        (two_layers, regrow.SET(sparsity=0.96), {"rescale": "density"}),
        (two_layers, regrow.SET(sparsity=0.96), {"start": "magnitude"}),
        (two_layers, regrow.SET(sparsity=0.9), {}),
        (two_layers, regrow.Hashed(sparsity=0.96), {}),
        (two_layers, regrow.Gradual(sparsity=0.96), {}),
        (lambda: nn.Sequential(nn.Linear(20, 30), nn.RMSNorm(30), nn.Linear(30, 10)), regrow.SET(sparsity=0.96), {}),
        (lambda: nn.Linear(20, 30), regrow.SET(sparsity=0.96), {}),
    ],
)
def test_signals_that_do_not(model, method, options):
    assert hints(model(), method, **options) == []


def test_a_run_that_goes_on_is_told_nothing():
    model = two_layers()
    state = regrow.attach(model, sgd(model), regrow.SET(sparsity=0.96)).state_dict()
    assert hints(two_layers(), regrow.SET(sparsity=0.96), resume=state) == []
