"""TopK on rows written out, its budget, and the steps in which every place is trained."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from regrow import TopK
from regrow.testing import check_invariants
from strategies import decide, make_row, row, rows

AT_TARGET = TopK(sparsity=0.5, until=100, ramp=0.0)


def some(tensor, *active):
    """A matrix of which some places are active; of the others the last step made what they are."""
    flags = torch.zeros(tensor.numel(), dtype=torch.bool)
    flags[list(active)] = True
    return tensor, flags


# What it decides


def test_the_largest_of_each_tensor_stay_wherever_they_are():
    # .9 and .7 were outside and come in; .2 and .1 go. The second layer has its largest already.
    first, second = some(torch.tensor([[0.2, -0.9, 0.1, 0.7]]), 0, 2), some(torch.tensor([[0.8, 0.6, 0.1, 0.5]]), 0, 1)
    done = decide(AT_TARGET, make_row([first[0], second[0]], [first[1], second[1]]), step=50)
    assert done.gone == [[0, 2], []]
    assert done.come == [[1, 3], []]


def test_of_equal_ones_the_first_stay():
    tensor, active = some(torch.tensor([[0.5, -0.5, 0.5, 0.5]]), 2, 3)
    done = decide(AT_TARGET, make_row([tensor], [active]), step=50)
    assert (done.gone, done.come) == ([[2, 3]], [[0, 1]])


def test_a_floor_keeps_the_largest_of_each_output_and_input():
    # Each input keeps its largest, .9 .8 .7 .6, and each output, too, .9 .2 .3; the seventh is the first of the .1.
    matrix = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.1, 0.1], [0.3, 0.1, 0.1, 0.1]])
    full = make_row([matrix], [torch.ones(12, dtype=torch.bool)], goal=[7], target=7)
    done = decide(TopK(sparsity=0.5, until=100, ramp=0.0, floor=1), full, step=50)
    assert sorted({*range(12)} - {*done.gone[0]}) == [0, 1, 2, 3, 4, 5, 8]


def test_a_vector_has_no_floor():
    matrix, bias = torch.tensor([[0.9, 0.8], [0.1, 0.2]]), torch.tensor([0.5, 0.4, 0.3, 0.2])
    full = make_row([matrix, bias], [torch.ones(4) > 0, torch.ones(4) > 0], goal=[3, 1], target=4)
    done = decide(TopK(sparsity=0.5, until=100, ramp=0.0, floor=1), full, step=50)
    assert done.gone == [[2], [1, 2, 3]]


@settings(deadline=None, max_examples=60)
@given(rows(), st.integers(0, 2**32), st.sampled_from([None, 1]))
def test_what_is_left_are_the_largest_of_each_layer(case, seed, limit):
    counts = [max(1, n // 2) for n in case.tally.num_units]
    case = make_row(case.tensors, case.active, goal=counts, target=sum(counts))
    done = decide(AT_TARGET, case, step=50, seed=seed, limit=limit)
    for i, (tensor, flags, count) in enumerate(zip(case.tensors, case.active, counts, strict=True)):
        left = {*flags.nonzero().flatten().tolist()} - {*done.gone[i]} | {*done.come[i]}
        largest = case.layers[i].flatten(tensor).abs().sort(descending=True, stable=True).indices[:count]
        assert left == {*largest.tolist()}


# Its budget


@pytest.mark.parametrize(("step", "left"), [(0, 100), (10, 100), (20, 80), (30, 60), (40, 40), (50, 20), (100, 20)])
def test_the_density_falls_along_a_line_to_its_target(step, left):
    # From all of 100 at step 10 to 20 at step 50, the half of `until`: 2 a step.
    method = TopK(sparsity=0.8, begin=10, until=100)
    assert method.budget_at(step, row([1.0] * 100, target=20, goal=[20]).tally) == left


def test_all_tensors_are_equally_dense_on_the_way():
    method = TopK(sparsity=0.5, until=20)
    two = row([float(i) for i in range(1, 41)], [float(i) for i in range(1, 9)], goal=[20, 4])
    assert decide(method, two, step=5).gone == [list(range(10)), [0, 1]]


# Fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"floor": -1}, "floor must be a whole number"),
        ({"floor": 2, "granularity": "channel"}, "a floor counts single weights"),
        ({"begin": 60, "until": 100}, "must not lie after the end of the ramp"),
        ({"until": None}, "until must be a step"),
        ({"ramp": 1.5}, r"ramp must be in \[0, 1\]"),
    ],
)
def test_fields_of_its_own_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        TopK(sparsity=0.9, **fields)


# In training


class Run:
    def __init__(self, method, make=lambda p: torch.optim.AdamW(p, lr=0.01), **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
        self.optimizer = make(self.model.parameters())
        self.sparse = regrow.attach(self.model, self.optimizer, method, **options)

    def step(self, seed=0):
        tokens = torch.randint(8, (16,), generator=torch.Generator().manual_seed(seed))
        (self.model(tokens) - torch.arange(6)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        check_invariants(self.model, self.optimizer, self.sparse)


def test_a_pruned_place_comes_back_through_the_optimizer():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    sparse = regrow.attach(layer, optimizer, TopK(sparsity=0.5, ramp=0.0), start="magnitude")
    assert sparse.masks()["weight"].tolist() == [[True, True, False, False]]
    for gradient in ([0, 0, 0, -1], [0, 0, 0, -1], [0, 2, 0, -1]):  # the second weight shrinks, the fourth would grow
        before = sparse.masks()["weight"]
        layer.weight.grad = torch.tensor([gradient], dtype=torch.float32)
        optimizer.step()
        assert (layer.weight[~sparse.masks()["weight"]] == 0).all()
    state = optimizer.state[layer.weight]
    assert before.tolist() == [[True, True, False, False]]
    # Its first moment has grown in the three steps in which it was outside: 1 - .9^3.
    assert state["exp_avg"][0, 3].item() == pytest.approx(-(1 - 0.9**3), rel=1e-5)
    for _ in range(3):
        layer.weight.grad = torch.tensor([[0.0, 4.0, 0.0, -1.0]])
        optimizer.step()
    assert sparse.masks()["weight"].tolist() == [[True, False, False, True]]
    assert layer.weight[0, 3] > 0.05
    assert layer.weight[0, 1] == 0


@pytest.mark.parametrize("period", [1, 3])
def test_weights_outside_are_0_after_every_step_and_their_moments_are_not(period):
    run = Run(TopK(sparsity=0.75, period=period, until=8))
    for seed in range(10):
        run.step(seed)
    mask = run.sparse.masks()["1.weight"]
    state = run.optimizer.state[run.model[1].weight]
    assert all((state[name][~mask] != 0).any() for name in ("exp_avg", "exp_avg_sq"))
    assert run.sparse.active == run.sparse.budget == run.sparse.target == (6 * 12 + 12 * 6) // 4


def test_named_embeddings_and_biases_are_sparse_too_and_the_summary_says_what_is_exempt():
    run = Run(TopK(sparsity=0.7, until=6, floor=1), layers=["*"])
    assert [layer.name for layer in run.sparse.layers] == ["0.weight", "1.weight", "1.bias", "3.weight", "3.bias"]
    for seed in range(7):
        run.step(seed)
    masks = run.sparse.masks()
    for name in ("0.weight", "1.weight", "3.weight"):
        assert masks[name].any(0).all()
        assert masks[name].any(1).all()
    assert masks["3.bias"].sum() == 2
    num_places = sum(mask.numel() for mask in masks.values())
    assert f"exempt: gradients and optimizer state, which are those of all {num_places} places" in run.sparse.summary()
    assert "exempt" not in Run(regrow.SET(sparsity=0.5)).sparse.summary()


def test_a_floor_that_needs_more_than_the_budget_is_refused_and_nothing_is_changed():
    run = Run(regrow.Dense())
    run.sparse.detach()
    before = copy.deepcopy(run.model.state_dict())
    # The first layer has 72 weights, 18 in its budget; one of each of 12 outputs and 6 inputs fits, two do not.
    with pytest.raises(ValueError, match=r"floor of 2 .* may take 36 weights of 1.weight, whose budget is 18; lower"):
        regrow.attach(run.model, run.optimizer, TopK(sparsity=0.75, floor=2))
    assert all(torch.equal(own, before[name]) for name, own in run.model.state_dict().items())
    regrow.attach(run.model, run.optimizer, TopK(sparsity=0.75, floor=1))


def test_packed_storage_keeps_nothing_outside_and_says_so():
    message = r"TopK needs .*, which packed storage does not offer; use storage='dense'"
    assert "dense_step" not in regrow.Packed.offers
    with pytest.raises(ValueError, match=message):
        Run(TopK(sparsity=0.75), storage="packed")


@pytest.mark.parametrize("moments", ["aged", "informed"])
def test_moments_that_never_end_do_not_begin_anew(moments):
    with pytest.raises(ValueError, match="TopK keeps the moments of every place"):
        Run(TopK(sparsity=0.75), moments=moments)


def test_a_layer_that_is_replaced_whole_in_one_step_is():
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    masks = {"weight": torch.tensor([[True, False, False, False]])}
    sparse = regrow.attach(layer, optimizer, TopK(sparsity=0.75, ramp=0.0), start=masks)
    layer.weight.grad = layer.weight.detach() + torch.tensor([[0.0, 0.0, -9.0, 0.0]])
    optimizer.step()
    assert sparse.masks()["weight"].tolist() == [[False, False, True, False]]


def test_where_nothing_is_due_any_more_the_topology_stays():
    run = Run(TopK(sparsity=0.75, until=4))
    for seed in range(5):
        run.step(seed)
    before = run.sparse.masks()
    for seed in range(5, 12):
        run.step(seed)
    assert all(torch.equal(mask, before[name]) for name, mask in run.sparse.masks().items())


def test_other_rules_with_a_dense_step_may_not_empty_a_layer():
    class Empties(TopK):
        def grow_counts(self, tally, evidence, key):
            return [0] * len(tally.active)

        def prune_units(self, evidence, counts, memory):
            return evidence.smallest(list(evidence.tally.active))

    run = Run(Empties(sparsity=0.75, ramp=0.0))
    with pytest.raises(ValueError, match="Empties leaves a layer without a weight"):
        run.step()
