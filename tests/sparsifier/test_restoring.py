"""In which order weights and topology come back: any that is right trains on, the wrong ones are said."""

from copy import deepcopy
from itertools import permutations

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import regrow
from regrow.testing import check_invariants
from restored_runs import METHODS, Run, same

ORDERS = list(permutations(["model", "optimizer", "sparse"]))
DSR, RIGL = METHODS["DSR"], METHODS["RigL"]
BEGIN_SPARSE = [name for name, method in METHODS.items() if Run().attach(method).sparse.sparsity > 0]
BEFORE = (
    r"attach has set \d+ weights to 0 that this state calls active.* give the state to attach\(\.\.\., resume=state"
)
STRAY = r"\d+ of the places where no weight is active.* load the state of the sparsifier"


def saved(method=DSR, num_steps=5, **options):
    return Run().attach(method, seed=3, **options).train(num_steps).all()


def load(run, state, parts):
    for part in parts:
        getattr(run, part).load_state_dict(deepcopy(state[part]))
    return run


# Weights restored, then attach, then the sparsifier's state


@pytest.mark.parametrize("name", BEGIN_SPARSE)
def test_weights_restored_before_attaching_were_zeroed_and_the_state_says_so(name):
    state = saved(METHODS[name], 8)
    run = Run(1).restore(state).attach(METHODS[name])
    had, kept = (int(own["model"]["0.weight"].count_nonzero()) for own in (state, run.all()))
    assert kept < had, "attach drew other places"
    before = run.all()
    with pytest.raises(ValueError, match=BEFORE):
        run.sparse.load_state_dict(state["sparse"])
    assert same(run.all(), before)


def test_the_optimizer_may_come_whenever_it_likes_it_changes_nothing_of_that():
    state = saved()
    run = load(Run(1), state, ["model"]).attach(DSR)
    load(run, state, ["optimizer"])
    with pytest.raises(ValueError, match=BEFORE):
        run.sparse.load_state_dict(state["sparse"])


def test_loading_the_weights_again_after_attaching_is_right():
    state = saved()
    whole = load(Run(1).attach(DSR), state, ["model", "optimizer", "sparse"]).train(4)
    again = Run(1).restore(state).attach(DSR)
    assert same(load(again, state, ["model", "sparse", "optimizer"]).train(4).all(), whole.all())


def test_weights_restored_before_attaching_at_their_own_places_are_all_there():
    state = saved()
    run = Run(1).restore(state).attach(DSR, start=state["sparse"]["masks"])
    run.sparse.load_state_dict(state["sparse"])
    assert same(run.all(), state)


# What is right


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_after_attaching_all_three_may_be_loaded_in_any_order(method, order):
    whole = Run().attach(method, seed=3).train(5)
    loaded = load(Run(1).attach(method), whole.all(), order)
    assert same(loaded.train(4).all(), whole.train(4).all())


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_state_saved_right_after_a_rewiring_of_the_same_seed_is_no_other(order):
    """What grew is 0 still, so that all that is left lies in both topologies."""
    whole = Run().attach(RIGL, seed=3).train(2)
    loaded = load(Run(1).attach(RIGL, seed=3), whole.all(), order)
    assert same(loaded.train(4).all(), whole.train(4).all())


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_one_takes_over_from_another_in_mid_training_and_goes_back(order):
    good, bad = Run().attach(DSR, seed=3).train(6), Run(1).attach(DSR, seed=4).train(4)
    early = bad.all()
    load(bad, good.all(), order)
    assert same(bad.train(3).all(), good.train(3).all())
    assert same(load(bad, early, order).all(), early)


def test_weights_that_begin_at_0_were_not_zeroed():
    state = saved()
    fresh = Run(1)
    with torch.no_grad():
        for parameter in fresh.model.parameters():
            parameter.zero_()
    loaded = load(fresh.attach(DSR), state, ["sparse", "model", "optimizer"])
    assert same(loaded.all(), state)


# Weights without their topology


@pytest.mark.parametrize("name", BEGIN_SPARSE)
def test_weights_loaded_without_their_topology_are_found_at_the_first_step(name):
    run = load(Run(1).attach(METHODS[name]), saved(METHODS[name], 8), ["model"])
    before = run.all()
    with pytest.raises(ValueError, match=STRAY):
        run.train(1)
    assert same(run.all()["model"], before["model"])


def test_dense_weights_loaded_after_attaching_are_found_at_the_first_step():
    run = Run().attach(DSR)
    run.model.load_state_dict(Run(1).model.state_dict())
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=STRAY):
        run.sparse.mask_gradients()


def test_they_are_found_at_the_first_step_after_a_state_was_loaded_too():
    run = Run().attach(DSR).train(6)
    run.sparse.load_state_dict(saved()["sparse"])
    run.model.load_state_dict(Run(1).model.state_dict())
    with pytest.raises(ValueError, match=STRAY):
        run.train(1)


def test_the_step_that_torch_takes_to_load_an_optimizer_is_not_the_first():
    """`set_state_dict` lets a fresh optimizer take a step without gradients, and loads the weights then."""
    whole = Run().attach(DSR, seed=3).train(5)
    model, optimizer = get_state_dict(whole.model, whole.optimizer)
    run = Run(1).attach(DSR)
    set_state_dict(run.model, run.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    with pytest.raises(ValueError, match=STRAY):
        run.train(1)
    run.sparse.load_state_dict(whole.sparse.state_dict())
    assert same(dict(run.model.state_dict()), dict(whole.model.state_dict()))
    assert run.train(2).sparse.num_steps == 7


def test_packed_values_of_another_topology_are_found_by_themselves():
    state = saved(storage="packed")
    run = load(Run(1).attach(DSR, storage="packed"), state, ["model"])
    with pytest.raises(RuntimeError, match="belong to another topology"):
        run.train(1)


def test_what_regrow_loads_is_where_it_attaches(tmp_path):
    whole = Run().attach(DSR).train(3)
    regrow.save(tmp_path / "model.safetensors", whole.model, whole.sparse)
    run = Run(1)
    masks = regrow.load(tmp_path / "model.safetensors", run.model)
    assert run.attach(DSR, start=masks).train(2).sparse.num_steps == 2


# Optimizer state that begins anew


class Constant(torch.optim.Optimizer):
    """Divides by a sum that begins with a constant, made when it is first needed."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for own in group["params"]:
                if own.grad is not None:
                    total = self.state[own].setdefault("sum", torch.full_like(own, 0.1))
                    own.addcdiv_(own.grad, total.addcmul_(own.grad, own.grad).sqrt().add_(1e-8), value=-group["lr"])


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1)


def clear(optimizer, first):
    optimizer.state.clear()


def clear_one(optimizer, first):
    del optimizer.state[optimizer.param_groups[0]["params"][0]]


def replace_one(optimizer, first):
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state["sum"] = torch.full_like(state["sum"], 0.1)


def load_first(optimizer, first):
    optimizer.load_state_dict(first)


ANEW = [
    (Constant, clear),
    (Constant, clear_one),
    (Constant, replace_one),
    (Constant, load_first),
    (adagrad, replace_one),
    (adagrad, load_first),
]


@pytest.mark.parametrize(("make", "begin_anew"), ANEW)
def test_optimizer_state_that_begins_anew_in_mid_training_is_cleared_where_nothing_is_active(make, begin_anew):
    run = Run()
    run.optimizer = make(run.model.parameters())
    first = deepcopy(run.optimizer.state_dict())
    if not first["state"]:
        first = deepcopy(run.train(1).optimizer.state_dict())
    run.attach(RIGL).train(3)
    for _ in range(3):
        begin_anew(run.optimizer, deepcopy(first))
        run.train(1)
        check_invariants(run.model, run.optimizer, run.sparse)


# Weights that somebody writes in mid-training


def replaced(model):
    model.load_state_dict(Run(1).model.state_dict())


def averaged(model):
    torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)(list(model.parameters()), list(Run(1).model.parameters()), 1)


@torch.no_grad()
def moved_by_hand(model):
    model[0].weight.add_(0.1)


@pytest.mark.parametrize("write", [replaced, averaged, moved_by_hand])
def test_weights_without_their_topology_are_found_at_the_next_step_whenever_they_come(write):
    run = Run().attach(DSR).train(3)
    write(run.model)
    before = run.all()
    for _ in range(2):
        with pytest.raises(ValueError, match=STRAY):
            run.train(1)
        assert same(run.all(), before)
    assert run.sparse.num_steps == 3


def clipped(model):
    for own in model.parameters():
        own.data.clamp_(-0.1, 0.1)


def swapped_and_back(model):
    own = deepcopy(model.state_dict())
    model.load_state_dict(Run(1).model.state_dict())
    model.load_state_dict(own)


@pytest.mark.parametrize("write", [clipped, swapped_and_back])
def test_weights_that_stay_within_the_topology_may_be_written_at_any_time(write):
    run = Run().attach(DSR).train(3)
    for _ in range(3):
        write(run.model)
        run.train(1)
        run.sparse.check()


def test_fresh_weights_are_no_restored_ones_though_the_topology_only_grew():
    """Of coarse units there may be room for one more; where none went, the first topology lies in that of the state."""

    def beginning():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 1, 1), nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(32, 9), nn.Linear(9, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        method = regrow.DSR(sparsity=0.6875, period=1, granularity="channel", prune=0, threshold=1e-9)
        return model, optimizer, regrow.attach(model, optimizer, method, seed=790)

    model, optimizer, sparse = beginning()
    first = sparse.masks()
    model(torch.randn(4, 2, 4, 4)).square().mean().backward()
    optimizer.step()
    assert sparse.active > sum(int(mask.sum()) for mask in first.values())
    fresh, _, other = beginning()
    other.load_state_dict(sparse.state_dict())
    fresh.load_state_dict(model.state_dict())
    assert all(torch.equal(mask, sparse.masks()[name]) for name, mask in other.masks().items())
