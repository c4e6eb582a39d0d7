"""GraNet on a row of eights, worked out by hand, and how its budget falls."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow import GraNet
from strategies import Row, coarse_rows, decide, make_row, row

_ = None  # a free place

# Eleven weights of which nine are to be left.
EIGHTS = row(
    [0.9, 0.3, 0.5, _, 0.2, 0.8, _, _],
    [0.35, 0.05, 0.7, 0.1, 0.4, 0.6, _, _],
    gradient=[[9, 9, 9, 1, 9, 9, -3, 2], [9, 9, 9, 9, 9, 9, 1, -2]],
    target=9,
)
HALFWAY = GraNet(sparsity=0.5, fraction=0.5, until=100, ramp=0.5)


def test_granet_prunes_the_smallest_of_the_network_and_then_replaces_some_of_each_layer():
    # At step 50 the ramp is over: two are too many, and the smallest two, .05 and .1, are in the second layer. Of what
    # is left, 5 and 4, a quarter goes (0.5 half way down its cosine): .2 here and .35 there, replaced by the steepest.
    done = decide(HALFWAY, EIGHTS, step=50)
    assert done.gone == [[4], [0, 1, 3]]
    assert done.grown == [1, 1]
    assert done.come == [[6], [7]]


def test_the_surplus_may_come_from_any_layer():
    # .05 is the smallest of the network, .02 of the other layer smaller still.
    mixed = row([0.9, 0.3, 0.02, 0.8, _], [0.35, 0.05, 0.7, _, _], target=5)
    done = decide(replace(HALFWAY, fraction=0.0), mixed, step=50)
    assert done.gone == [[2], [1]]
    assert done.come == [[], []]


def test_no_layer_vanishes_under_the_surplus():
    # Three are too many; all of the first layer are smaller than the second's, but the largest stays.
    small = row([0.1, 0.3, 0.2, _], [0.5, 0.6, 0.7, _], target=3)
    assert decide(replace(HALFWAY, fraction=0.0), small, step=50).gone == [[0, 2], [0]]


def test_where_the_budget_is_met_granet_only_replaces():
    # A quarter of 5 and of 6: 1 and 2 (1.5 is rounded to the even number).
    at_target = replace(EIGHTS, tally=replace(EIGHTS.tally, target=11))
    done = decide(HALFWAY, at_target, step=50)
    assert done.gone == [[4], [1, 3]]
    assert done.come == [[6], [6, 7]]


def test_at_its_end_granet_prunes_what_is_too_much_and_replaces_nothing():
    done = decide(HALFWAY, EIGHTS, step=100)
    assert done.gone == [[], [1, 3]]
    assert done.come == [[], []]


def test_granet_starts_with_erk_densities_and_asks_for_the_gradients_of_free_places():
    assert GraNet(sparsity=0.5).distribution == "erk"
    assert GraNet(sparsity=0.5).needs == {"free_gradient", "changing_budget"}


# The budget


def ramp(granet: GraNet, num_weights: int, target: int, *steps: int) -> list[int]:
    full = row([1.0] * num_weights, target=target).tally
    return [granet.budget_at(step, full) for step in steps]


def test_the_budget_falls_along_a_cubic_to_its_target():
    # Of 256 weights 128 at first and 64 in the end, from step 8 of 10 on. Of the 64 that are to go, (1 - t/8)^3 are
    # still there: 27/64 at step 2, 1/8 at step 4, 1/64 at step 6.
    granet = GraNet(sparsity=0.75, first_sparsity=0.5, until=10, ramp=0.8)
    assert ramp(granet, 256, 64, 0, 2, 4, 6, 8, 10, 1000) == [128, 64 + 27, 64 + 8, 64 + 1, 64, 64, 64]


def test_without_a_ramp_the_target_is_reached_at_once():
    granet = GraNet(sparsity=0.75, first_sparsity=0.5, until=10, ramp=0.0)
    assert ramp(granet, 256, 64, 0, 1, 10) == [128, 64, 64]


def test_a_ramp_of_one_lasts_to_the_end():
    # Half way an eighth of what is to go is still there.
    granet = GraNet(sparsity=0.75, first_sparsity=0.5, until=10, ramp=1.0)
    assert ramp(granet, 256, 64, 0, 5, 9, 10) == [128, 64 + 8, 64, 64]


def test_a_network_that_starts_as_sparse_as_it_ends_keeps_its_budget():
    granet = GraNet(sparsity=0.75, first_sparsity=0.9, until=10)
    assert ramp(granet, 256, 64, 0, 5, 10) == [64, 64, 64]


def test_the_budget_never_rises_even_where_there_is_less_than_planned():
    # A network that was handed in with 70 weights, where the ramp would still allow 72 at step 4.
    granet = GraNet(sparsity=0.75, first_sparsity=0.5, until=10, ramp=0.8)
    few = replace(row([1.0] * 70 + [_] * 186).tally, target=64)
    assert [granet.budget_at(step, few) for step in (2, 4, 6, 8)] == [70, 70, 65, 64]


@given(
    st.integers(1, 10**6),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.floats(0, 1),
    st.integers(1, 500),
    st.integers(0, 500),
)
@settings(deadline=None, max_examples=60)
def test_the_budget_falls_from_its_first_value_to_its_last_and_never_rises(size, first, last, share, until, step):
    granet = GraNet(sparsity=last, first_sparsity=first, ramp=share, until=until)
    target = max(granet.budget(size), 1)
    full = replace(row([1.0]).tally, num_units=(size,), active=(size,), target=target, budget=size)
    now, later = granet.budget_at(step, full), granet.budget_at(step + 1, full)
    assert target <= later <= now <= size
    assert granet.budget_at(0, full) == max(round((1 - first) * size), target)
    assert granet.budget_at(until, full) == target
    t = min(Fraction(step, max(round(share * until), 1)), Fraction(1))
    exact = target + (granet.budget_at(0, full) - target) * (1 - t) ** 3
    assert now == pytest.approx(float(exact), abs=0.51)


# A whole run


def after(case: Row, granet: GraNet, step: int, seed: int) -> Row:
    """The row after a rewiring; what grew weighs nothing yet, in gradients that are others each time."""
    done = decide(granet, case, step=step, seed=seed)
    flags = [own.clone() for own in case.active]
    tensors = [tensor.clone() for tensor in case.tensors]
    for layer, own, tensor, gone, come in zip(case.layers, flags, tensors, done.gone, done.come, strict=True):
        own[gone] = False
        own[come] = True
        layer.put(tensor, torch.tensor(come, dtype=torch.int64), 0)
    active = tuple(int(own.sum()) for own in flags)
    tally = replace(case.tally, active=active, budget=granet.budget_at(step, case.tally))
    gradient = [own.roll(1) for own in case.beside["gradient"]]
    return replace(
        case, tensors=tuple(tensors), active=tuple(flags), beside={**case.beside, "gradient": gradient}, tally=tally
    )


def test_single_weights_follow_the_budget_exactly_to_its_end():
    granet = GraNet(sparsity=0.75, first_sparsity=0.5, until=10, ramp=0.8, fraction=0.3)
    numbers = torch.linspace(-1, 1, 256)
    tensors, flags = [numbers[:100], numbers[100:]], [torch.arange(100) % 2 == 0, torch.arange(156) % 2 == 0]
    case = make_row(tensors, flags, gradient=[numbers[:100].sin(), numbers[100:].cos()], target=64)
    held = []
    for step in range(2, 11, 2):
        case = after(case, granet, step, seed=0)
        held.append(sum(case.counts))
    assert held == [64 + 27, 64 + 8, 64 + 1, 64, 64]


@given(coarse_rows, st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_coarse_units_of_any_sizes_stay_within_one_unit_below_the_budget_all_the_way(case, share, fraction, seed):
    target = case.tally.weights_in([1] * len(case.layers))
    case = replace(case, tally=replace(case.tally, target=target))
    everything = case.tally.weights_in(case.tally.num_units)
    first = 1 - min(case.budget, everything - 1) / everything
    granet = GraNet(sparsity=0.5, first_sparsity=first, fraction=fraction, ramp=share, until=12)
    for step in range(2, 13, 2):
        case = after(case, granet, step, seed)
        held = case.tally.weights_in(case.counts)
        assert case.budget - max(case.tally.unit_sizes) < held <= case.budget
        assert min(case.counts) >= 1
    assert case.budget == target
