"""Attaching to weights that were restored before: masks, step, memory, history and seed come from a saved state."""

import pytest
import torch
from torch import nn

import regrow
from regrow.sparsifier.layers import choose_layers
from regrow.sparsifier.resume import MasksOfPositions
from restored_runs import METHODS, OPTIMIZERS, PACKED, Run, same
from tests.fixtures.version_1.network import CASES as OLD
from tests.fixtures.version_1.network import NUM_STEPS_AFTER, NUM_STEPS_BEFORE, Training, read, storage_options

# Bit for bit


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", METHODS)
def test_what_was_restored_before_stays_and_the_run_goes_on_to_the_same_bits(name, optimizer):
    method = METHODS[name]
    whole = Run(optimizer=optimizer).attach(method, seed=3).train(5)
    saved = whole.all()
    resumed = Run(1, optimizer).restore(saved).attach(method, resume=saved["sparse"])
    assert same(resumed.all(), saved)
    assert same(resumed.train(6).all(), whole.train(6).all())


@pytest.mark.parametrize("name", METHODS)
def test_attaching_so_is_attaching_and_then_loading_all_three(name):
    saved = Run().attach(METHODS[name], seed=3).train(5).all()
    loaded = Run(1).attach(METHODS[name], seed=8).restore(saved)
    loaded.sparse.load_state_dict(saved["sparse"])
    resumed = Run(2).restore(saved).attach(METHODS[name], resume=saved["sparse"])
    assert same(resumed.train(4).all(), loaded.train(4).all())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", PACKED)
def test_packed_values_may_be_loaded_after(name, optimizer):
    whole = Run(optimizer=optimizer).attach(METHODS[name], storage="packed", seed=3).train(5)
    saved = whole.all()
    resumed = Run(1, optimizer).attach(METHODS[name], storage="packed", resume=saved["sparse"]).restore(saved)
    assert same(resumed.all(), saved)
    assert same(resumed.train(6).all(), whole.train(6).all())


@pytest.mark.parametrize("name", PACKED)
def test_packed_values_are_those_of_the_dense_weights_at_the_places_of_the_state(name):
    packed = Run().attach(METHODS[name], storage="packed", seed=3).train(5)
    state = packed.sparse.state_dict()
    packed.sparse.detach()
    dense = Run(1)
    dense.model.load_state_dict(packed.model.state_dict())
    dense.attach(METHODS[name], storage="packed", resume=state)
    assert same(dense.sparse.state_dict(), state)
    for one, other in zip(dense.model, packed.model, strict=True):
        assert torch.equal(one.weight, other.weight)


def test_hashed_layers_share_their_values_as_in_the_run_that_was_saved():
    method = regrow.Hashed(sparsity=0.8)
    whole = Run().attach(method, seed=3).train(5)
    saved = whole.all()
    resumed = Run(1).attach(method, seed=3, resume=saved["sparse"]).restore(saved)
    assert same(resumed.train(6).all(), whole.train(6).all())


@pytest.mark.parametrize("name", [name for name, case in OLD.items() if not case.is_gone])
def test_runs_saved_by_version_1_go_on_as_they_would_have(name):
    saved, case = read(name), OLD[name]
    training = Training(case, seed=6, num_steps=NUM_STEPS_BEFORE)
    training.sparse.detach()
    keeps_shapes = bool(saved["sparse"]["masks"])
    if keeps_shapes:
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
    training.sparse = regrow.attach(
        training.model, training.optimizer, case.method, resume=saved["sparse"], **storage_options(case.storage)
    )
    if not keeps_shapes:
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
    training.train(NUM_STEPS_AFTER)
    found, expected = training.outcome(), saved["outcome"]
    assert same(found["masks"], expected["masks"])
    assert found["history"] == expected["history"]
    torch.testing.assert_close(found["model"], expected["model"])


def test_a_run_that_began_from_masks_keeps_their_budget():
    masks = {"0.weight": torch.rand(20, 12) < 0.5, "1.weight": torch.rand(4, 20) < 0.5}
    whole = Run().attach(METHODS["DSR"], start=masks).train(3)
    saved = whole.all()
    resumed = Run(1).restore(saved).attach(METHODS["DSR"], resume=saved["sparse"])
    assert resumed.sparse.budget == sum(int(mask.sum()) for mask in masks.values())
    assert same(resumed.train(4).all(), whole.train(4).all())


def test_what_stands_at_inactive_places_becomes_0():
    saved = Run().attach(METHODS["DSR"]).train(3).all()
    stray = Run(1).restore(saved)
    with torch.no_grad():
        stray.model[0].weight.add_(1)
        stray.optimizer.state[stray.model[0].weight]["exp_avg"].add_(1)
    stray.attach(METHODS["DSR"], resume=saved["sparse"])
    outside = ~saved["sparse"]["masks"]["0.weight"]
    assert not stray.model[0].weight[outside].any()
    assert not stray.optimizer.state[stray.model[0].weight]["exp_avg"][outside].any()
    assert stray.model[0].weight[~outside].all()


def test_numbers_of_the_method_may_change_and_that_is_said():
    saved = Run().attach(METHODS["DSR"]).train(4).all()
    other = regrow.DSR(sparsity=0.8, period=3, until=50)
    with pytest.warns(UserWarning, match=r"goes on with period=3, until=50, threshold=0\.001; if that is not meant"):
        resumed = Run(1).restore(saved).attach(other, resume=saved["sparse"])
    assert resumed.train(2).sparse.num_steps == 6


# Refused, with nothing changed


def given(run, method, **options):
    return lambda: run.attach(method, **options)


DSR = METHODS["DSR"]
REFUSED = {
    "another method": (DSR, {"method": METHODS["RigL"]}, "the state is of DSR, this sparsifier runs RigL"),
    "another granularity": (
        DSR,
        {"method": regrow.DSR(sparsity=0.8, granularity="channel")},
        "the state has granularity 'weight', the method 'channel'",
    ),
    "another budget": (
        DSR,
        {"method": regrow.DSR(sparsity=0.7)},
        r"the state has a budget of 64 weights, DSR\(sparsity=0.7\) one of 96",
    ),
    "another budget in the end": (
        METHODS["Gradual"],
        {"method": regrow.Gradual(sparsity=0.7, until=9)},
        r"the state has a budget of 64 weights, Gradual\(sparsity=0.7\) one of 96",
    ),
    "other layers": (DSR, {"layers": ["0.weight"]}, r"other sparse layers \(missing: \[\], unknown: \['1.weight'\]"),
    "other shapes": (DSR, {"sizes": (12, 21, 4)}, r"0.weight of shape \(20, 12\), this model of \(21, 12\)"),
    "another storage": (DSR, {"storage": "packed"}, "the state is one of dense storage; attach with storage='dense'"),
    "a start beside it": (DSR, {"start": "magnitude"}, "resume brings the masks that were saved; leave out start"),
    "no state": (DSR, {"resume": {"weights": 3}}, "this is not the state of a sparsifier"),
    "another thing": (DSR, {"resume": "state.pt"}, "this is not the state of a sparsifier"),
}
DAMAGE = {
    "an unknown key": {"nonsense": 1},
    "a seed of None": {"seed": None},
    "no target": {"target": None},
    "a goal that is short": {"goal": (3,)},
    "a budget that is not held": {"budget": 70},
    "masks of numbers": {"masks": {"0.weight": torch.ones(20, 12), "1.weight": torch.ones(4, 20)}},
    "masks that are none": {"masks": 3},
    "a history of numbers": {"history": (1, 2)},
}


def check_refused(saved, options, message):
    run = Run(1, sizes=options.pop("sizes", (12, 20, 4)))
    run.train(1)
    before = run.all()
    with pytest.raises(ValueError, match=message) as refusal:
        run.attach(**{"method": DSR, "resume": saved["sparse"], **options})
    assert "\n" not in str(refusal.value)
    assert same(run.all(), before)
    assert not run.optimizer._optimizer_step_pre_hooks
    run.optimizer.state.clear()
    run.attach(DSR, storage="packed").train(2)  # as if nothing had been


@pytest.mark.parametrize("what", REFUSED)
def test_a_state_of_something_else_is_refused_before_anything_is_changed(what):
    method, options, message = REFUSED[what]
    check_refused(Run().attach(method).train(3).all(), dict(options), message)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_state_is_refused_before_anything_is_changed(what):
    saved = Run().attach(DSR).train(3).all()
    check_refused({"sparse": saved["sparse"] | DAMAGE[what]}, {}, r"state|mask")


def test_a_damaged_packed_state_is_refused_before_anything_is_changed():
    state = Run().attach(DSR, storage="packed").train(3).sparse.state_dict()
    for damage in ({"positions": state["positions"].flip(0)}, {"counts": None}, {"beside": {"sign": 3}}):
        run = Run(1)
        before = run.all()
        with pytest.raises(ValueError, match="state"):
            run.attach(DSR, storage="packed", resume=state | damage)
        assert same(run.all(), before)


# Positions as masks


def test_positions_are_masks_when_they_are_asked_for():
    model = nn.Sequential(nn.Linear(3, 2))
    chosen, _ = choose_layers(model, torch.optim.SGD(model.parameters(), lr=0.1), None, "weight")
    masks = MasksOfPositions([layer for layer, _ in chosen], [torch.tensor([0, 4])])
    assert list(masks) == ["0.weight"]
    assert len(masks) == 1
    assert masks["0.weight"].tolist() == [[True, False, False], [False, True, False]]
