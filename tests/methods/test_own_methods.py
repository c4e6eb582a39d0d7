"""Other people's methods: what they may lean on, and in which words they are refused."""

import pytest
import torch
from torch import nn

import regrow
from regrow.methods import METHODS, Effect, Method, Units, method, prune


@pytest.fixture(autouse=True)
def own_registry():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


class Run:
    def __init__(self, method, storage="dense"):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage)

    def step(self):
        self.model(torch.randn(8, 16)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_who_needs_signs_has_them(storage):
    @method
    class Signed(Method):
        needs = frozenset({"sign"})

        def prune_units(self, evidence, counts, memory):
            assert torch.equal(evidence.sign, evidence.weight > 0)
            return evidence.smallest([3, 2])

    run = Run(Signed(sparsity=0.5, period=1), storage)
    run.step()
    assert sum(run.sparse.totals.pruned.values()) == 5


def test_what_an_effect_lays_beside_the_weights_is_evidence_and_stays_as_it_is():
    class Count(Effect):
        def attach(self, weights, optimizer, seed):
            super().attach(weights, optimizer, seed)
            weights.lay_beside("count", None, None)

        def after_step(self, step, is_replayed):
            for tensor in self._weights.beside("count"):
                tensor.add_(1)
            return False

    @method
    class ByCount(Method):
        def effects(self):
            return [*super().effects(), Count()]

        def prune_counts(self, tally, step):
            return prune.fraction_of_each(0.3, tally.active, tally.free)

        def grow_units(self, evidence, counts, key):
            return evidence.largest_free(counts, lambda units: units.look_up("count"))

    torch.manual_seed(0)
    model = nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, ByCount(sparsity=0.5, period=1))
    for step in range(1, 4):
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        assert bool((sparse.state_dict()["beside"]["count"]["weight"] == step).all())


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_growth_beyond_the_budget_is_refused_and_nothing_is_changed(storage):
    @method
    class Greedy(Method):
        regrows_in_place = False

        def grow_counts(self, tally, evidence, key):
            return list(tally.free)

    run = Run(Greedy(sparsity=0.5, period=1), storage)
    masks = run.sparse.masks()
    with pytest.raises(ValueError, match=r"Greedy grows \d+ weights where its budget has room for 0"):
        run.step()
    assert all(torch.equal(mask, masks[name]) for name, mask in run.sparse.masks().items())


def test_a_growth_that_is_counted_wrongly_is_refused():
    @method
    class Wrong(Method):
        def prune_counts(self, tally, step):
            return [2, 2]

        def grow_units(self, evidence, counts, key):
            return Units(evidence.draw_free(counts, key).positions[1:], counts)

    with pytest.raises(ValueError, match=r"Wrong grows 3 units and counts \[2, 2\]"):
        Run(Wrong(sparsity=0.5, period=1)).step()


@pytest.mark.parametrize("count", [10**6, -1])
def test_counts_to_prune_are_held_within_the_layer(count):
    @method
    class Rough(Method):
        def prune_counts(self, tally, step):
            return [count, 0]

    run = Run(Rough(sparsity=0.5, period=1))
    run.step()
    assert run.sparse.active == run.sparse.budget


def test_a_budget_that_moves_must_be_declared():
    @method
    class Shrinking(Method):
        def budget_at(self, step, tally):
            return tally.target - step

    with pytest.raises(ValueError, match=r"Shrinking moves its budget .* needs .changing_budget."):
        Run(Shrinking(sparsity=0.5, period=1)).step()


def test_what_is_not_declared_is_not_there():
    @method
    class Unsaid(Method):
        def prune_units(self, evidence, counts, memory):
            return evidence.smallest([1, 1], evidence.gradient)

    with pytest.raises(ValueError, match="there is no gradient to look at"):
        Run(Unsaid(sparsity=0.5, period=1)).step()


def test_needs_a_storage_lacks_are_refused_in_one_sentence_and_nothing_is_changed():
    @method
    class Mean(Method):
        needs = ["mean_gradient"]  # noqa: RUF012

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = (
        "Mean needs a running mean of the gradient of every place ('mean_gradient'), which packed storage does not "
        "offer; use storage='dense'"
    )
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        regrow.attach(model, optimizer, Mean(sparsity=0.5), storage="packed")
    assert str(refused.value) == message
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_a_storage_is_a_value_and_not_a_class():
    with pytest.raises(TypeError, match="storage must be one of"):
        Run(regrow.SET(sparsity=0.5), regrow.Packed)
    with pytest.raises(ValueError, match="storage must be one of"):
        Run(regrow.SET(sparsity=0.5), "hashed")
