"""Starting densities: the budget, shared among layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.densities import check_together, starting_counts
from regrow.core.units import Layer, cut


def layers_of(*shapes, granularity="weight"):
    return [cut(f"{chr(97 + i)}.weight", torch.empty(shape), granularity) for i, shape in enumerate(shapes)]


def weights(layers: list[Layer], counts: list[int]) -> int:
    return sum(n * layer.unit_size for n, layer in zip(counts, layers, strict=True))


def test_uniform_makes_every_layer_equally_dense():
    # 8 + 16 + 24 = 48 positions, half of them active.
    assert starting_counts(layers_of((2, 4), (4, 4), (6, 4)), 24, "uniform") == [4, 8, 12]


def test_uniform_rounds_for_the_network_not_for_each_layer():
    # 7 of 3 x 8 positions are 2.33 each; rounding each layer would make only 6.
    assert starting_counts(layers_of((8,), (8,), (8,)), 7, "uniform") == [3, 2, 2]


def test_er_favours_small_layers():
    # Density goes with (inputs + outputs) / (inputs * outputs), so weights with inputs + outputs: 4 + 4 and 4 + 12.
    assert starting_counts(layers_of((4, 4), (4, 12)), 12, "er") == [4, 8]


def test_er_looks_at_channels_and_erk_at_the_kernel_too():
    # er: 9 (4 + 4) = 72 against 8 + 8 = 16. erk: 4 + 4 + 3 + 3 = 14 against 8 + 8 = 16.
    layers = layers_of((4, 4, 3, 3), (8, 8))
    assert starting_counts(layers, 44, "er") == [36, 8]
    assert starting_counts(layers, 30, "erk") == [14, 16]


def test_erk_counts_of_lenet_300_100():
    # Shares 300 + 784 = 1084, 100 + 300 = 400, 10 + 100 = 110 of 1594.
    layers = layers_of((300, 784), (100, 300), (10, 100))
    assert starting_counts(layers, 1594, "erk") == [1084, 400, 110]


def test_a_layer_that_erk_would_overfill_is_dense_and_the_rest_goes_to_the_others():
    # Shares 2 + 2 = 4 and 8 + 8 = 16: a fifth of 30 is 6, but the small layer holds 4.
    assert starting_counts(layers_of((2, 2), (8, 8)), 30, "erk") == [4, 26]


def test_vectors_are_shared_uniformly_under_erk_too():
    assert starting_counts(layers_of((8,), (8,)), 8, "erk") == [4, 4]


def test_named_layers_get_their_sparsity_and_the_others_what_is_left():
    # a keeps 3/4 of 8 = 6; the budget of 12 leaves 6 for b and c, 8 positions each.
    layers = layers_of((8,), (2, 4), (4, 2))
    assert starting_counts(layers, 12, {"a.weight": 0.25}) == [6, 3, 3]


def test_patterns_name_several_layers_and_the_later_pattern_wins():
    layers = layers_of((8,), (8,), (8,))
    assert starting_counts(layers, 12, {"[ab].weight": 0.75, "b.*": 0.5}) == [2, 4, 6]


def test_a_layers_own_name_wins_over_patterns_wherever_it_stands():
    layers = layers_of((8,), (8,), (8,))
    assert starting_counts(layers, 12, {"b.weight": 0.5, "[ab].*": 0.75}) == [2, 4, 6]
    assert starting_counts(layers, 12, {"b": 0.5, "[ab].*": 0.75}) == [2, 4, 6]  # as does its module's


def test_sparsities_of_all_layers_must_make_that_of_the_network():
    # 0.75 of 80 and 0.5 of 20 leave 20 + 10 of 100 weights.
    layers = layers_of((80,), (20,))
    check_together(layers, 30, {"a": 0.75, "b": 0.5})
    check_together(layers, 31, {"a": 0.75, "b": 0.5})  # as rounding may have it
    check_together(layers, 10, {"a": 0.75})  # the other layer gets what is left
    with pytest.raises(
        ValueError, match=r"leave 30 of 100 weights, which is a sparsity of 0.7 where the method has 0.9"
    ):
        check_together(layers, 10, {"b": 0.5, "*": 0.75})


def test_where_all_layers_are_named_the_densities_are_scaled_to_the_budget():
    # Densities 1/2 and 1/4 would make 4 + 2 = 6; a budget of 3 halves both.
    layers = layers_of((8,), (8,))
    assert starting_counts(layers, 3, {"a.*": 0.5, "b.*": 0.75}) == [2, 1]


def test_an_empty_mapping_is_uniform():
    assert starting_counts(layers_of((8,), (16,)), 12, {}) == [4, 8]


def test_a_pattern_that_matches_nothing_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"no layer matches 'a.wieght'; did you mean 'a.weight'"):
        starting_counts(layers_of((8,), (8,)), 8, {"a.wieght": 0.5})


@pytest.mark.parametrize(("budget", "sparsity"), [(6, 0.0), (4, 0.5), (15, 0.75)])
def test_sparsities_that_leave_too_little_or_too_much_are_refused(budget, sparsity):
    with pytest.raises(ValueError, match="the other 1 layers, which can hold 8"):
        starting_counts(layers_of((8,), (8,)), budget, {"a.*": sparsity})


def test_a_budget_of_less_than_one_unit_per_layer_is_refused():
    with pytest.raises(ValueError, match=r"a budget of 2 weights cannot leave one unit in each of 3 layers"):
        starting_counts(layers_of((8,), (8,), (8,)), 2, "uniform")


def test_a_tiny_layer_beside_a_huge_one_still_gets_a_unit():
    assert starting_counts(layers_of((4,), (1000, 1000)), 100, "uniform") == [1, 99]


def test_kernels_are_counted_whole():
    # 4 kernels of 9 and 8 of 1: a budget of 22 of the 44 weights is two kernels of 9 and four of 1.
    layers = layers_of((2, 2, 3, 3), (2, 4, 1, 1), granularity="kernel")
    assert starting_counts(layers, 22, "uniform") == [2, 4]


shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 40)),
        st.tuples(st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 5), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=7,
)


@given(shapes, st.sampled_from(["uniform", "er", "erk"]), st.sampled_from(["weight", "kernel", "channel"]), st.data())
@settings(deadline=None)
def test_the_budget_is_met_with_at_least_one_unit_in_each_layer(shapes, distribution, granularity, data):
    layers = layers_of(*shapes, granularity=granularity)
    smallest = sum(layer.unit_size for layer in layers)
    budget = data.draw(st.integers(smallest, sum(layer.num_weights for layer in layers)))
    counts = starting_counts(layers, budget, distribution)
    assert all(1 <= n <= layer.num_units for n, layer in zip(counts, layers, strict=True))
    largest = max(layer.unit_size for layer in layers)
    assert budget - largest < weights(layers, counts) <= budget
    if largest == 1:
        assert weights(layers, counts) == budget


@given(shapes, st.data())
@settings(deadline=None)
def test_named_layers_get_exactly_theirs_if_the_others_can_take_the_rest(shapes, data):
    layers = layers_of(*shapes)
    names = [layer.name for layer in layers]
    named = data.draw(st.dictionaries(st.sampled_from(names), st.floats(0, 0.99)).filter(lambda d: len(d) < len(names)))
    budget = data.draw(st.integers(len(layers), sum(layer.num_weights for layer in layers)))
    fixed = {
        layer.name: max(1, round((1 - named[layer.name]) * layer.num_units)) for layer in layers if layer.name in named
    }
    others = [layer for layer in layers if layer.name not in named]
    if len(others) <= budget - sum(fixed.values()) <= sum(layer.num_weights for layer in others):
        counts = dict(zip(names, starting_counts(layers, budget, named), strict=True))
        assert sum(counts.values()) == budget
        assert min(counts.values()) >= 1
        assert {name: counts[name] for name in fixed} == fixed
    else:
        with pytest.raises(ValueError, match="sparsities given for single layers"):
            starting_counts(layers, budget, named)


@given(shapes, st.data())
@settings(deadline=None)
def test_a_mapping_of_all_layers_meets_the_budget_too(shapes, data):
    layers = layers_of(*shapes)
    named = {layer.name: data.draw(st.floats(0, 0.99)) for layer in layers}
    budget = data.draw(st.integers(len(layers), sum(layer.num_weights for layer in layers)))
    counts = starting_counts(layers, budget, named)
    assert sum(counts) == budget
    assert min(counts) >= 1


@given(st.lists(st.tuples(st.integers(20, 60), st.integers(20, 60)), min_size=2, max_size=5))
@settings(deadline=None)
def test_erk_weights_go_with_the_sum_of_the_dimensions(shapes):
    layers = layers_of(*shapes)
    budget = sum(map(sum, shapes))
    assert starting_counts(layers, budget, "erk") == [sum(shape) for shape in shapes]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.floats(0, 1))
@settings(deadline=None)
def test_uniform_densities_differ_by_less_than_one_unit(sizes, density):
    layers = layers_of(*[(n,) for n in sizes])
    budget = max(round(density * sum(sizes)), len(sizes))
    counts = starting_counts(layers, budget, "uniform")
    quotas = [n * budget / sum(sizes) for n in sizes]
    if min(quotas) >= 1:
        assert all(abs(count - quota) < 1 + 1e-9 for count, quota in zip(counts, quotas, strict=True))
