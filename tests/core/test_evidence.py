"""Evidence: the few selections by which rules pick units over the whole network."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regrow.core.evidence import Evidence, Units
from strategies import Row, any_rows, make_row, row, rows

_ = None  # a free place

EIGHT = row(
    [0.9, -0.1, _, -0.4],
    [0.3, _, -0.05, 0.6],
    gradient=[[1, -8, 3, 1], [-2, 5, 4, 0]],
)
IN_ANY_WAY = pytest.mark.parametrize(
    "evidence", EIGHT.in_all_ways(limit=4), ids=["masked", "listed", "masked in chunks", "listed in chunks"]
)


def saliency(units) -> Tensor:
    return (units.weight * units.gradient).abs()


def told(units: Units) -> tuple[list[int], list[int]]:
    """Positions, ascending within each layer, and how many of each layer."""
    parts = torch.split(units.positions, list(units.counts))
    return [place for part in parts for place in sorted(part.tolist())], list(units.counts)


# What there is to see


@IN_ANY_WAY
def test_evidence_is_of_the_active_units_of_the_whole_row(evidence):
    assert evidence.position.tolist() == [0, 1, 3, 4, 6, 7]
    assert evidence.weight.tolist() == pytest.approx([0.9, -0.1, -0.4, 0.3, -0.05, 0.6])
    assert evidence.gradient.tolist() == [1, -8, 1, -2, 4, 0]
    assert evidence.index(0).tolist() == [0, 1, 3, 0, 2, 3]
    assert (evidence.step, evidence.tally.active) == (100, (3, 3))


# below


@IN_ANY_WAY
def test_below_takes_all_active_units_that_are_smaller_and_counts_them_by_layer(evidence):
    assert told(evidence.below(0.35)) == ([1, 4, 6], [1, 2])


@pytest.mark.parametrize("is_listed", [False, True])
def test_what_is_as_large_as_the_bound_is_not_below_it(is_listed):
    evidence = row([0.25, 0.2499, 0.2501, -0.25]).evidence(is_listed=is_listed)
    assert told(evidence.below(0.25)) == ([1], [1])


@IN_ANY_WAY
def test_below_goes_by_any_score(evidence):
    # abs(weight times gradient): .9, .8, .4 and .6, .2, 0
    assert told(evidence.below(0.5, saliency)) == ([3, 6, 7], [1, 2])
    assert told(evidence.below(0.5, saliency(evidence))) == ([3, 6, 7], [1, 2])
    assert told(evidence.below(0.0, lambda units: units.weight)) == ([1, 3, 6], [2, 1])


def test_a_bound_is_the_same_number_for_layers_of_any_precision():
    # 0.7 in single precision is a little less than in double; beside a layer in double it must not suddenly look so.
    tensors = [torch.tensor([0.7, 0.9]), torch.tensor([0.9, 0.9], dtype=torch.float64)]
    mixed = make_row(tensors, [torch.ones(2, dtype=torch.bool)] * 2)
    assert told(mixed.evidence().below(0.7)) == told(mixed.evidence(limit=1).below(0.7))


# smallest


@IN_ANY_WAY
def test_smallest_takes_from_each_layer_its_own_smallest(evidence):
    # The first layer loses .1 of .9, .1, .4; the second .3 and .05 of .3, .05, .6.
    assert told(evidence.smallest([1, 2])) == ([1, 4, 6], [1, 2])


@IN_ANY_WAY
def test_smallest_goes_by_any_score(evidence):
    # .9, .8, .4 and .6, .2, 0: small weights with a large gradient stay.
    assert told(evidence.smallest([1, 2], saliency)) == ([3, 6, 7], [1, 2])
    assert told(evidence.smallest([1, 2], score=saliency(evidence))) == ([3, 6, 7], [1, 2])


@IN_ANY_WAY
def test_smallest_takes_nothing_where_nothing_is_to_go(evidence):
    assert told(evidence.smallest([0, 0])) == ([], [0, 0])
    assert told(evidence.smallest([0, 1])) == ([6], [0, 1])


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("is_listed", [False, True])
def test_of_equal_ones_the_first_go(limit, is_listed):
    evidence = row([0.5, -0.5, _, 0.5, 0.5], [0.5, _, 0.5]).evidence(limit=limit, is_listed=is_listed)
    assert told(evidence.smallest([2, 1])) == ([0, 1, 5], [2, 1])
    assert told(evidence.smallest_of_all(3)) == ([0, 1, 3], [3, 0])


# smallest, with a floor


def matrix(is_listed: bool = False, limit: int | None = None) -> Evidence:
    # .1 .2 .3 .
    # .4  .  . .9
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.0], [0.4, 0.0, 0.0, 0.9]])
    return make_row([weights], [weights.flatten() != 0]).evidence(is_listed=is_listed, limit=limit)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_floor_spares_the_largest_of_each_row_of_a_matrix(is_listed):
    # Of .1, .2, .3 and .4, .9 the largest stays: .3 and .9.
    assert told(matrix(is_listed).smallest([3], floor={0: 1})) == ([0, 1, 4], [3])


def test_a_floor_spares_the_largest_of_each_column():
    # The columns hold .1 and .4; .2; .3; .9: nothing but .1 may go.
    assert told(matrix().smallest([1], floor={1: 1})) == ([0], [1])


def test_with_a_floor_fewer_go_where_too_few_are_left():
    assert told(matrix().smallest([3], floor={1: 1})) == ([0], [1])
    assert told(matrix().smallest([4], floor={0: 2})) == ([0], [1])


def test_a_floor_of_several_dimensions_spares_what_any_of_them_spares():
    # Rows spare .3 and .9, columns all but .1.
    assert told(matrix().smallest([5], floor={0: 1, 1: 1})) == ([0], [1])


def test_a_floor_of_nothing_spares_nothing():
    assert told(matrix().smallest([5], floor={0: 0})) == ([0, 1, 2, 4, 7], [5])


def test_a_floor_goes_by_the_score():
    # By 1 - weight the smallest of each row is the largest weight: .1 of the first and .4 of the second are spared.
    assert told(matrix().smallest([3], score=lambda units: 1 - units.weight, floor={0: 1})) == ([1, 2, 7], [3])


def test_with_a_floor_too_a_score_of_minus_infinity_goes_first():
    scores = torch.tensor([3.0, -torch.inf, 2.0, -torch.inf, -torch.inf])  # the second row keeps one of two alike
    assert told(matrix().smallest([4], scores, floor={0: 1})) == ([1, 2, 4], [3])


def test_of_equal_ones_a_floor_spares_the_last():
    weights = torch.full((2, 4), 0.5)
    evidence = make_row([weights], [torch.ones(8, dtype=torch.bool)]).evidence()
    assert told(evidence.smallest([8], floor={0: 1})) == ([0, 1, 2, 4, 5, 6], [6])


def test_each_layer_has_floors_of_its_own():
    # Both layers have an output 0; each keeps its own largest there.
    tensors = [torch.tensor([[0.1, 0.2]]), torch.tensor([[0.3, 0.4, 0.5]])]
    evidence = make_row(tensors, [torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool)]).evidence()
    assert told(evidence.smallest([2, 2], floor={0: 1})) == ([0, 2, 3], [1, 2])


# smallest_of_all


@IN_ANY_WAY
def test_smallest_of_all_compares_the_whole_network(evidence):
    # .05 and .3 of the second layer, .1 of the first
    assert told(evidence.smallest_of_all(3)) == ([1, 4, 6], [1, 2])
    assert told(evidence.smallest_of_all(0)) == ([], [0, 0])


@IN_ANY_WAY
def test_smallest_of_all_goes_by_any_score(evidence):
    # .9, .8, .4 and .6, .2, 0
    assert told(evidence.smallest_of_all(2, saliency)) == ([6, 7], [0, 2])
    assert told(evidence.smallest_of_all(3, saliency(evidence))) == ([3, 6, 7], [1, 2])


@pytest.mark.parametrize("limit", [None, 1])
def test_smallest_of_all_never_takes_the_last_of_a_layer(limit):
    # All of the first layer are smaller than any of the second, but its .3 stays.
    evidence = row([0.1, 0.3, 0.2, _], [0.5, 0.6, 0.7, _]).evidence(limit=limit)
    assert told(evidence.smallest_of_all(3)) == ([0, 2, 4], [2, 1])
    assert told(evidence.smallest_of_all(100)) == ([0, 2, 4, 5], [2, 2])


def test_of_equal_ones_the_last_of_a_layer_is_the_one_that_stays():
    assert told(row([0.5, 0.5, _, 0.5]).evidence().smallest_of_all(3)) == ([0, 1], [2])


def test_not_even_where_others_score_infinity_is_the_last_of_a_layer_taken():
    evidence = row([1.0, _], [1.0, 1.0]).evidence()
    infinite = torch.tensor([1.0, torch.inf, torch.inf])
    assert told(evidence.smallest_of_all(1, infinite)) == ([2], [0, 1])


# mean_of_each


@IN_ANY_WAY
def test_mean_of_each_is_a_number_per_layer(evidence):
    # (1 + 1 - 8) / 3 and (4 + 0 - 2) / 3
    assert evidence.mean_of_each(lambda units: units.gradient) == [-2, 2 / 3]


@IN_ANY_WAY
def test_a_mean_may_be_of_a_tensor(evidence):
    assert evidence.mean_of_each(evidence.gradient) == [-2, 2 / 3]


@IN_ANY_WAY
def test_without_a_score_it_is_the_mean_magnitude(evidence):
    # (.9 + .1 + .4) / 3 and (.3 + .05 + .6) / 3
    assert evidence.mean_of_each(None) == pytest.approx([1.4 / 3, 0.95 / 3])


def test_the_mean_of_a_single_zero_is_that_and_no_magnitude():
    evidence = row([0.5, _]).evidence()
    assert evidence.mean_of_each(torch.zeros(1)) == [0]


# largest_free

FREE = row(
    [_, 0.5, _, _],
    [_, _, 0.5, _],
    gradient=[[1, 9, 3, -2], [5, -8, 9, 6]],
)
FREE_IN_ANY_WAY = pytest.mark.parametrize(
    "evidence", FREE.in_all_ways(limit=4), ids=["masked", "listed", "masked in chunks", "listed in chunks"]
)


def steepness(units) -> Tensor:
    return units.gradient.abs()


@FREE_IN_ANY_WAY
def test_largest_free_takes_the_largest_of_the_free_places_of_each_layer(evidence):
    # The nines belong to active units.
    assert told(evidence.largest_free([1, 2], steepness)) == ([2, 5, 7], [1, 2])


@FREE_IN_ANY_WAY
def test_largest_free_may_take_nothing_or_all(evidence):
    assert told(evidence.largest_free([0, 0], steepness)) == ([], [0, 0])
    assert told(evidence.largest_free([3, 3], steepness)) == ([0, 2, 3, 4, 5, 7], [3, 3])


@FREE_IN_ANY_WAY
def test_of_equal_places_the_first_come(evidence):
    assert told(evidence.largest_free([2, 1], lambda units: torch.ones_like(units.gradient))) == ([0, 2, 4], [2, 1])


@FREE_IN_ANY_WAY
def test_places_that_score_minus_infinity_are_free_all_the_same(evidence):
    nowhere = evidence.largest_free([2, 2], lambda units: torch.full_like(units.gradient, -torch.inf))
    assert told(nowhere) == ([0, 2, 4, 5], [2, 2])


@FREE_IN_ANY_WAY
def test_what_is_looked_at_is_not_changed(evidence):
    before = [own.clone() for own in FREE.flat("gradient")]
    evidence.largest_free([2, 2], lambda units: units.gradient)
    assert all(map(torch.equal, before, FREE.flat("gradient")))


@pytest.mark.parametrize("limit", [None, 1])
def test_largest_free_may_look_among_some_places_only(limit):
    evidence = FREE.evidence(limit=limit)
    among = FREE.units([0, 3], [0, 1, 3])
    assert told(evidence.largest_free([1, 2], steepness, among)) == ([3, 5, 7], [1, 2])


@pytest.mark.parametrize("limit", [None, 1])
def test_among_some_places_fewer_come_where_there_are_fewer(limit):
    evidence = FREE.evidence(limit=limit)
    assert told(evidence.largest_free([2, 2], steepness, FREE.units([3], []))) == ([3], [1, 0])


def test_active_units_that_are_named_do_not_come():
    assert told(FREE.evidence().largest_free([2, 1], steepness, FREE.units([1, 2], [2]))) == ([2], [1, 0])


def test_among_some_places_of_equal_ones_the_first_come():
    alike = FREE.evidence().largest_free([1, 1], lambda units: units.gradient * 0, FREE.units([2, 3], [1, 3]))
    assert told(alike) == ([2, 5], [1, 1])


def test_where_only_active_units_are_stored_the_places_looked_among_are_kept_to_or_refused():
    evidence, among = FREE.evidence(is_listed=True), FREE.units([0, 3], [0, 1, 3])
    try:
        found = evidence.largest_free([1, 2], steepness, among)
    except ValueError:
        return
    assert told(found) == ([3, 5, 7], [1, 2])


@pytest.mark.parametrize("limit", [None, 1])
def test_growth_may_look_among_places_that_were_drawn(limit):
    # Few of the first and many of the second layer, which are drawn in two ways.
    long = make_row([torch.ones(400), torch.ones(40)], [torch.arange(400) < 1, torch.arange(40) < 1])
    evidence = long.evidence(limit=limit)
    drawn = evidence.draw_free([20, 20], key=3)
    last = evidence.largest_free([3, 2], lambda units: units.position.float(), drawn)
    some, others = long.places(drawn)
    assert long.places(last) == [some[-3:], others[-2:]]


# largest


@pytest.mark.parametrize("limit", [None, 1])
def test_largest_looks_at_all_places_active_or_not(limit):
    # By gradient the first layer has 1, 9, 3, -2 and the second 5, -8, 9, 6.
    evidence = FREE.evidence(limit=limit)
    assert told(evidence.largest([2, 1], steepness)) == ([1, 2, 6], [2, 1])
    assert told(evidence.largest([0, 4], steepness)) == ([4, 5, 6, 7], [0, 4])


def dense(limit: int | None = None) -> Evidence:
    # .1 .2 .7 .8   of which only the first is active, and beside it   1
    # .3 .6 .4 .5                                                      .9
    weights = torch.tensor([[0.1, -0.2, 0.7, 0.8], [0.3, 0.6, -0.4, 0.5]])
    return make_row([weights, torch.tensor([[1.0], [0.9]])], [torch.arange(8) == 0, torch.ones(2) > 0]).evidence(
        limit=limit
    )


@pytest.mark.parametrize("limit", [None, 1])
def test_without_a_score_the_largest_are_those_of_the_largest_magnitude(limit):
    assert told(dense(limit).largest([3, 1])) == ([2, 3, 5, 8], [3, 1])


def test_a_floor_takes_the_largest_of_each_index_first():
    # One of each column: .3, .6, .7 and .8; then .5 is the largest of the others.
    assert told(dense().largest([5, 1], floor={1: 1})) == ([2, 3, 4, 5, 7, 8], [5, 1])


def test_a_floor_takes_more_than_was_asked_for_if_need_be():
    assert told(dense().largest([2, 0], floor={1: 1})) == ([2, 3, 4, 5, 8], [4, 1])
    assert told(dense().largest([0, 0], floor={0: 1})) == ([3, 5, 8, 9], [2, 2])


@pytest.mark.parametrize("floor", [None, {0: 1}])
def test_of_equal_ones_the_first_are_the_largest(floor):
    evidence = make_row([torch.full((2, 4), 0.5)], [torch.ones(8, dtype=torch.bool)]).evidence()
    assert told(evidence.largest([2], floor=floor)) == ([0, 1] if floor is None else [0, 4], [2])


def test_where_only_active_units_are_stored_there_is_no_largest_of_all_places():
    with pytest.raises(ValueError, match="of the places that are not active nothing is stored"):
        FREE.evidence(is_listed=True).largest([1, 1])


# draw_free


@IN_ANY_WAY
def test_draw_free_takes_free_places_only(evidence):
    assert told(evidence.draw_free([1, 1], key=7)) == ([2, 5], [1, 1])
    assert told(evidence.draw_free([0, 1], key=7)) == ([5], [0, 1])
    assert told(evidence.draw_free([0, 0], key=7)) == ([], [0, 0])


def test_another_key_draws_other_places():
    evidence = row([0.5] + [_] * 200).evidence()
    assert told(evidence.draw_free([5], key=7)) == told(evidence.draw_free([5], key=7))
    assert told(evidence.draw_free([5], key=7)) != told(evidence.draw_free([5], key=8))


@pytest.mark.parametrize("wanted", [[5, 60], [60, 5], [5, 5], [60, 60]])
@pytest.mark.parametrize("is_listed", [False, True])
def test_what_is_drawn_stands_layer_after_layer(wanted, is_listed):
    # 5 of 99 are found by drawing, 60 by a number for every place.
    drawn = row([0.5] + [_] * 99, [0.5] + [_] * 99).evidence(is_listed=is_listed).draw_free(wanted, key=7)
    first, second = torch.split(drawn.positions, list(drawn.counts))
    assert drawn.counts == wanted
    assert first.max() < 100 <= second.min()


# Scores


@IN_ANY_WAY
@pytest.mark.parametrize("kind", ["tensor", "function"])
@pytest.mark.parametrize(
    "select",
    [
        lambda evidence, score: evidence.below(1.0, score),
        lambda evidence, score: evidence.smallest([1, 1], score),
        lambda evidence, score: evidence.smallest([1, 1], score, floor={0: 1}),
        lambda evidence, score: evidence.smallest_of_all(2, score),
        lambda evidence, score: evidence.mean_of_each(score),
    ],
    ids=["below", "smallest", "smallest with a floor", "smallest_of_all", "mean_of_each"],
)
def test_scores_that_are_no_numbers_are_refused_with_the_name_of_the_layer(evidence, select, kind):
    def score(units):  # 0 / 0 for the last unit of the second layer alone
        return units.gradient / units.gradient

    with pytest.raises(ValueError, match="layer1 has scores that are NaN"):
        select(evidence, score if kind == "function" else score(evidence))


def test_infinite_scores_are_no_reason_to_refuse_and_their_layer_is_not_the_one_named():
    with pytest.raises(ValueError, match="layer1 has scores that are NaN"):
        EIGHT.evidence().smallest([1, 1], torch.tensor([torch.inf, 1, -torch.inf, 0, torch.nan, 0]))


@IN_ANY_WAY
def test_scores_of_free_places_must_be_numbers_too(evidence):
    with pytest.raises(ValueError, match="layer1 has scores that are NaN"):
        evidence.largest_free([1, 1], undefined_at_five)


@pytest.mark.parametrize("limit", [None, 1])
def test_scores_of_the_places_looked_among_must_be_numbers(limit):
    with pytest.raises(ValueError, match="layer1 has scores that are NaN"):
        EIGHT.evidence(limit=limit).largest_free([1, 1], undefined_at_five, EIGHT.units([2], [1]))


def undefined_at_five(units) -> Tensor:
    """0 / 0 where the gradient is 5: at the free place of the second layer."""
    return (units.gradient - 5) / (units.gradient - 5)


@IN_ANY_WAY
def test_a_score_of_minus_infinity_goes_first_and_one_of_infinity_last(evidence):
    scores = torch.tensor([torch.inf, 1.0, -torch.inf, 2.0, torch.inf, 3.0])
    assert told(evidence.smallest([2, 2], scores)) == ([1, 3, 4, 7], [2, 2])


# Split


@pytest.mark.parametrize("limit", [None, 1])
def test_units_of_the_row_split_into_places_within_each_chunk(limit):
    evidence = EIGHT.evidence(limit=limit)
    assert [own.tolist() for own in evidence.split(EIGHT.units([1, 3], [2]))] == (
        [[1, 3, 6]] if limit is None else [[1, 3], [2]]
    )


# Properties: what is picked is what sorting would pick, however the row is stored and cut

SCORES: dict[str, Callable[[Evidence], object]] = {
    "magnitude": lambda evidence: None,
    "a function": lambda evidence: saliency,
    "a tensor": saliency,
}
scores = st.sampled_from(list(SCORES))
limits = st.integers(1, 60)


def ranked(row: Row, kind: str) -> list[list[tuple[float, int]]]:
    """The active units of each layer as (score, position), in the order in which they would be picked."""
    evidence = row.evidence()
    values = evidence.weight.abs() if kind == "magnitude" else saliency(evidence)
    pairs = list(zip(values.tolist(), evidence.position.tolist(), strict=True))
    ends = list(accumulate(row.counts))
    return [sorted(pairs[end - n : end]) for n, end in zip(row.counts, ends, strict=True)]


def picked(layers: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    return [place for own in layers for place in sorted(own)], [len(own) for own in layers]


def in_every_way(row: Row, limit: int, kind: str, select: Callable[[Evidence, object], Units]) -> list[tuple]:
    return [told(select(evidence, SCORES[kind](evidence))) for evidence in row.in_all_ways(limit)]


@given(any_rows, limits, scores, st.sampled_from([0.0, 0.25, 0.5, 1.1, 100.0]))
@settings(deadline=None, max_examples=40)
def test_below_is_all_that_is_below(row, limit, kind, bound):
    expected = picked([[place for score, place in own if score < bound] for own in ranked(row, kind)])
    found = in_every_way(row, limit, kind, lambda evidence, score: evidence.below(bound, score))
    assert found == [expected] * 4


@given(any_rows, limits, scores, st.data())
@settings(deadline=None, max_examples=40)
def test_smallest_is_the_beginning_of_each_layer_in_order(row, limit, kind, data):
    counts = [data.draw(st.integers(0, n)) for n in row.counts]
    expected = picked([[place for _, place in own[:n]] for own, n in zip(ranked(row, kind), counts, strict=True)])
    found = in_every_way(row, limit, kind, lambda evidence, score: evidence.smallest(counts, score))
    assert found == [expected] * 4


@given(any_rows, limits, scores, st.dictionaries(st.just(0), st.integers(0, 3), min_size=1), st.data())
@settings(deadline=None, max_examples=40)
def test_a_floor_keeps_so_many_at_each_index(row, limit, kind, floor, data):
    counts = [data.draw(st.integers(0, n)) for n in row.counts]
    lies_at = dict(zip(row.evidence().position.tolist(), row.evidence().index(0).tolist(), strict=True))
    expected = []
    for own, n in zip(ranked(row, kind), counts, strict=True):
        left = [lies_at[place] for _, place in own]
        free_to_go = [place for i, (_, place) in enumerate(own) if left[i + 1 :].count(lies_at[place]) >= floor[0]]
        expected.append(free_to_go[:n])
    found = in_every_way(row, limit, kind, lambda evidence, score: evidence.smallest(counts, score, floor))
    assert found == [picked(expected)] * 4


@given(any_rows, limits, scores, st.integers(0, 100))
@settings(deadline=None, max_examples=40)
def test_smallest_of_all_is_the_beginning_of_the_network_in_order(row, limit, kind, count):
    layers = ranked(row, kind)
    first = sorted(pair for own in layers for pair in own[:-1])[:count]
    expected = picked([[pair[1] for pair in own if pair in first] for own in layers])
    found = in_every_way(row, limit, kind, lambda evidence, score: evidence.smallest_of_all(count, score))
    assert found == [expected] * 4


@given(any_rows, limits, scores)
@settings(deadline=None, max_examples=40)
def test_means_are_the_same_however_the_row_is_stored_and_cut(row, limit, kind):
    # Scores are multiples of 1/16 (or of a unit's mean), and so are exact sums of them.
    means = [evidence.mean_of_each(SCORES[kind](evidence)) for evidence in row.in_all_ways(limit)]
    assert means == [means[0]] * 4
    plain = [sum(score for score, _ in own) / len(own) for own in ranked(row, kind)]
    assert means[0] == pytest.approx(plain)


@given(any_rows, limits, st.data())
@settings(deadline=None, max_examples=40)
def test_largest_free_is_the_end_of_each_layers_free_places_in_order(row, limit, data):
    free = row.free_places()
    counts = [data.draw(st.integers(0, len(places))) for places in free]
    expected = []
    for places, n, start, gradient in zip(free, counts, row.starts, row.flat("gradient"), strict=True):
        best = sorted(places, key=lambda place: (-abs(gradient[place].item()), place))[:n]
        expected.append([start + place for place in best])
    found = [told(evidence.largest_free(counts, steepness)) for evidence in row.in_all_ways(limit)]
    assert found == [picked(expected)] * 4


@given(any_rows, limits, st.data())
@settings(deadline=None, max_examples=40)
def test_among_some_places_it_is_the_end_of_those_in_order(row, limit, data):
    named = [data.draw(st.sets(st.integers(0, layer.num_units - 1))) for layer in row.layers]
    counts = [data.draw(st.integers(0, layer.num_units)) for layer in row.layers]
    expected = []
    for places, some, n, start, gradient in zip(
        row.free_places(), named, counts, row.starts, row.flat("gradient"), strict=True
    ):
        best = sorted(set(places) & some, key=lambda place: (-abs(gradient[place].item()), place))[:n]
        expected.append([start + place for place in best])
    among = row.units(*map(sorted, named))
    for cut in (None, limit):
        assert told(row.evidence(limit=cut).largest_free(counts, steepness, among)) == picked(expected)


@given(any_rows, limits, st.integers(0, 2**40), st.data())
@settings(deadline=None, max_examples=40)
def test_draw_free_gives_so_many_free_places_the_same_in_every_way(row, limit, key, data):
    free = row.free_places()
    counts = [data.draw(st.integers(0, len(places))) for places in free]
    one, *others = [told(evidence.draw_free(counts, key)) for evidence in row.in_all_ways(limit)]
    assert others == [one] * 3
    drawn = row.places(row.evidence().draw_free(counts, key))
    assert list(map(len, map(set, drawn))) == counts
    assert all(set(some) <= set(places) for some, places in zip(drawn, free, strict=True))


@given(rows(), st.integers(0, 100))
@settings(deadline=None, max_examples=40)
def test_selections_change_nothing_they_were_shown(row, count):
    shown = [*row.tensors, *row.active, *row.beside["gradient"]]
    before = [tensor.clone() for tensor in shown]
    for evidence in row.in_all_ways(limit=1):
        evidence.below(0.5, lambda units: units.weight)
        evidence.smallest([n - 1 for n in row.counts], lambda units: units.weight, floor={0: 1})
        evidence.smallest_of_all(count, lambda units: units.weight)
        evidence.mean_of_each(lambda units: units.gradient)
        evidence.largest_free([len(places) for places in row.free_places()], lambda units: units.gradient)
    assert all(map(torch.equal, before, shown))
