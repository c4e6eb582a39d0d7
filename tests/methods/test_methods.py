"""What SET, RigL, SNFS and gradual pruning decide on a row of eights, worked out by hand."""

import pytest

from regrow import DSR, SET, SNFS, Gradual, RigL
from regrow.methods.effects.l1 import L1
from regrow.methods.effects.mean_gradient import MeanGradient
from strategies import decide, row

_ = None  # a free place


# SET


def test_set_replaces_the_smallest_fraction_of_each_layer_within_it():
    # 0.3 of six and of four, rounded: 2 and 1; the first layer has just two free places.
    done = decide(
        SET(sparsity=0.5, fraction=0.3), row([0.9, 0.1, -0.5, _, 0.2, -0.8, 0.7, _], [0.3, -0.1, 0.2, 0.4, _, _, _, _])
    )
    assert done.gone == [[1, 4], [1]]
    assert done.come[0] == [3, 7]
    assert done.come[1][0] in (4, 5, 6, 7)
    assert done.grown == [2, 1]


def test_set_shares_a_whole_number_in_proportion_to_the_active():
    # Three units of the network, 6 active here and 3 there: two and one.
    done = decide(
        SET(sparsity=0.5, fraction=3), row([0.9, 0.1, -0.5, _, 0.2, -0.8, 0.7, _], [0.3, -0.1, 0.2, _, _, _, _, _])
    )
    assert done.gone == [[1, 4], [1]]


def test_set_with_a_number_larger_than_possible_replaces_what_it_can():
    done = decide(SET(sparsity=0.5, fraction=1000), row([0.9, 0.1, 0.5, _], [0.3, 0.1, _, _]))
    assert done.gone == [[1], [1]]


def test_set_one_means_a_unit_and_one_point_nought_everything():
    eight = row([0.4, 0.1, 0.3, 0.2, _, _, _, _])
    assert decide(SET(sparsity=0.5, fraction=1), eight).gone == [[1]]
    assert decide(SET(sparsity=0.5, fraction=1.0), eight).gone == [[1, 2, 3]]


# RigL

EVIDENCE = row(
    [0.9, _, 0.1, _, -0.2, _, 0.8, _],
    [-0.3, 0.7, _, _, 0.5, _, 0.6, _],
    gradient=[[9, 1, 9, -4, 9, 3, -9, 2], [0, 0, 5, 7, 0, -8, 0, 6]],
)


def test_rigl_replaces_the_smallest_by_those_with_the_largest_gradient():
    done = decide(RigL(sparsity=0.5, fraction=0.5), EVIDENCE)
    assert done.gone == [[2, 4], [0, 4]]
    assert done.come == [[3, 5], [3, 5]]


def test_rigl_does_not_bring_back_what_it_just_pruned():
    # The pruned places 2 and 4 have the largest gradient of all.
    done = decide(RigL(sparsity=0.5, fraction=0.5), EVIDENCE)
    assert not set(done.come[0]) & {2, 4}


@pytest.mark.parametrize(("step", "pruned"), [(1, [2, 2]), (50, [1, 1]), (100, [0, 0])])
def test_rigl_prunes_less_and_less(step, pruned):
    # 0.5 of 4 falls along a cosine: 2 at the start, 1 half way, none at the end.
    assert decide(RigL(sparsity=0.5, fraction=0.5, until=100), EVIDENCE, step=step).pruned == pruned


def test_rigl_looks_at_the_gradient_of_one_step_only():
    assert RigL(sparsity=0.5).needs == {"free_gradient"}
    assert RigL(sparsity=0.5).effects() == []


def test_rigl_starts_with_erk_densities():
    assert RigL(sparsity=0.5).distribution == "erk"


def test_rigl_does_the_same_where_inactive_places_are_not_stored():
    rigl = RigL(sparsity=0.5, fraction=0.5)
    assert decide(rigl, EVIDENCE, is_listed=True) == decide(rigl, EVIDENCE)


def test_a_method_like_rigl_may_look_for_other_gradients():
    class Rises(RigL):
        """Goes by the gradient itself: where the loss would fall if the weight became negative."""

        def growth_score(self, gradient):
            return gradient

    done = decide(Rises(sparsity=0.5, fraction=0.5), EVIDENCE)
    assert done.come == [[5, 7], [3, 7]]


# SNFS


def test_snfs_gives_layers_their_share_by_momentum():
    # Half of each layer's 4 go. The mean momentum of active ones is (1 + 2 + 3 + 6) / 4 = 3 and 1, so 4 come as 3 : 1.
    done = decide(
        SNFS(sparsity=0.5, fraction=0.5),
        row(
            [0.9, _, 0.1, _, -0.2, _, 0.8, _],
            [-0.3, 0.7, _, _, 0.5, _, 0.6, _],
            mean_gradient=[[1, 0.1, -2, 0.4, 3, -0.3, -6, 0.2], [1, -1, 5, 7, 1, -8, 1, 6]],
        ),
    )
    assert done.gone == [[2, 4], [0, 4]]
    assert done.grown == [3, 1]
    assert done.come == [[3, 5, 7], [5]]


def test_snfs_keeps_a_running_mean():
    (effect,) = SNFS(sparsity=0.5, momentum=0.75).effects()
    assert isinstance(effect, MeanGradient)
    assert effect.decay == 0.75


def test_snfs_ends_with_its_schedule():
    assert decide(SNFS(sparsity=0.5, fraction=0.5, until=100), EVIDENCE, step=100).pruned == [0, 0]


# L1


def test_l1_pulls_by_its_strength():
    (pull,) = DSR(sparsity=0.5, l1=1e-4).effects()
    assert isinstance(pull, L1)
    assert pull.strength == 1e-4


def test_without_l1_nothing_pulls():
    assert DSR(sparsity=0.5).effects() == []


# Gradual pruning


@pytest.mark.parametrize(("step", "left"), [(0, 62), (4, 24), (8, 10), (12, 8)])
def test_gradual_pruning_follows_the_cubic(step, left):
    # From 62 down to 8 at step 12: of the 54 that are to go, (2/3)^3 = 8/27 are still there at step 4: 8 + 16.
    done = decide(
        Gradual(sparsity=54 / 62, until=12, period=4), row([float(i) for i in range(1, 63)], goal=[8]), step=step
    )
    assert done.gone == [list(range(62 - left))]
    assert done.come == [[]]


def test_gradual_pruning_takes_the_smallest_of_each_layer_down_to_its_own_count():
    done = decide(
        Gradual(sparsity=0.5, until=10),
        row([0.4, -0.1, 0.3, 0.2], [5.0, 7.0, -8.0, 6.0], goal=[1, 3]),
        step=10,
    )
    assert done.gone == [[1, 2, 3], [0]]
    assert done.grown == [0, 0]


def test_gradual_pruning_waits_for_its_beginning():
    # Half way between step 10 and step 20: 1 - (1/2)^3 = 7/8 of the 8 that are to go.
    pruning = Gradual(sparsity=0.5, begin=10, until=20)
    sixteen = row([float(i) for i in range(1, 17)], goal=[8])
    assert [decide(pruning, sixteen, step=step).pruned for step in (0, 10, 15, 20)] == [[0], [0], [7], [8]]


def test_gradual_pruning_never_grows_back_where_less_is_left_than_planned():
    done = decide(Gradual(sparsity=0.5, until=10), row([0.4, _, _, _], goal=[2]), step=5)
    assert (done.pruned, done.grown) == ([0], [0])


@pytest.mark.parametrize(("step", "left"), [(0, 62), (4, 24), (8, 10), (12, 8)])
def test_the_budget_of_gradual_pruning_is_what_its_layers_are_to_have(step, left):
    pruning = Gradual(sparsity=54 / 62, until=12, period=4)
    two = row([1.0] * 62, [1.0] * 62, goal=[8, 8])
    assert pruning.budget_at(step, two.tally) == 2 * left
