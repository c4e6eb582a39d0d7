"""Saved states: what is in one, what is refused, and that they go through torch.distributed.checkpoint."""

import copy
import io
from itertools import pairwise

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.functional import mse_loss

import regrow
from every_method import EVERY_STEP, can_be_packed, make
from regrow.sparsifier import steps

METHODS = {
    "DSR": regrow.DSR(sparsity=0.8, period=2, threshold=0.05),
    "SNFS": regrow.SNFS(sparsity=0.8, period=2),
    "Gradual": regrow.Gradual(sparsity=0.8, period=2, until=9),
    "GraNet": regrow.GraNet(sparsity=0.8, period=2, until=9),
    "Hashed": regrow.Hashed(sparsity=0.8),
    "DSR on blocks": regrow.DSR(sparsity=0.5, period=2, threshold=0.1, granularity="2x2"),
    **{name: make(regrow.METHODS[name], sparsity=0.8, temperature=1e-3) for name in EVERY_STEP},
}
PACKED = ["DSR", *(name for name in EVERY_STEP if can_be_packed(METHODS[name]))]
CASES = [*((name, "dense") for name in METHODS), *((name, "packed") for name in PACKED)]


class Run:
    def __init__(self, method, storage="dense", seed=0, sizes=(12, 20, 4)):
        torch.manual_seed(0)
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
        self.model = nn.Sequential(*layers).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if storage == "packed":
            storage = regrow.Packed(kernels="sparse")
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage, seed=seed)
        self.x = torch.randn(16, sizes[0], generator=torch.Generator().manual_seed(1)).double()

    def train(self, num_steps):
        for _ in range(num_steps):
            mse_loss(self.model(self.x), self.x[:, :4]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def state(self):
        return {"model": self.model.state_dict(), "sparse": self.sparse.state_dict()}


def described(state):
    """Keys of a state, with the shapes and dtypes of tensors."""
    if isinstance(state, dict):
        return {key: described(value) for key, value in state.items()}
    return (state.shape, state.dtype) if isinstance(state, torch.Tensor) else type(state)


def same(one, other):
    """Whether two states say the same, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_keys_and_shapes_are_the_same_from_the_first_step_to_the_last(name, storage):
    run = Run(METHODS[name], storage)
    first = described(run.sparse.state_dict())
    assert described(run.train(8).sparse.state_dict()) == first


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is said where there is one process
@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_state_goes_through_torchs_distributed_checkpoint(name, storage, tmp_path):
    run, other = Run(METHODS[name], storage).train(7), Run(METHODS[name], storage, seed=5)
    dcp.save(run.state(), checkpoint_id=tmp_path, no_dist=True)
    state = other.state()
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert same(state["sparse"], run.sparse.state_dict())
    other.model.load_state_dict(state["model"])
    other.sparse.load_state_dict(state["sparse"])
    assert same(other.sparse.state_dict(), run.sparse.state_dict())


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_state_is_tensors_numbers_and_strings(name, storage):
    buffer = io.BytesIO()
    torch.save(Run(METHODS[name], storage).train(4).sparse.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert state["regrow"] == regrow.__version__
    assert state["version"] == 2


def test_packed_positions_are_one_vector_as_long_as_the_budget():
    state = Run(METHODS["DSR"], "packed").train(3).sparse.state_dict()
    assert state["positions"].shape == (64,)
    assert state["target"] == state["budget"] == sum(state["counts"]) == 64


def test_a_moving_budget_is_part_of_the_state():
    run = Run(METHODS["Gradual"]).train(4)
    state = run.sparse.state_dict()
    assert state["target"] == run.sparse.target == 64
    assert 64 < state["budget"] == run.sparse.budget == run.sparse.active < 320


REFUSED = {
    "another method": (regrow.SET(sparsity=0.8), "the state is of SET, this sparsifier runs DSR"),
    "another granularity": (
        regrow.DSR(sparsity=0.8, granularity="channel"),
        "the state has granularity 'channel', the method 'weight'",
    ),
    "another budget": (
        regrow.DSR(sparsity=0.7),
        "the state has a budget of 96 weights, this sparsifier one of 64",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_belong_is_named(what):
    method, message = REFUSED[what]
    sparse = Run(METHODS["DSR"]).sparse
    with pytest.raises(ValueError, match=message):
        sparse.load_state_dict(Run(method).sparse.state_dict())


@pytest.mark.parametrize(
    ("sizes", "message"), [((12, 20, 16, 4), "other sparse layers"), ((12, 21, 4), r"0\.weight of shape \(21, 12\)")]
)
def test_another_model_is_named(sizes, message):
    sparse = Run(METHODS["DSR"]).sparse
    with pytest.raises(ValueError, match=message):
        sparse.load_state_dict(Run(METHODS["DSR"], sizes=sizes).sparse.state_dict())


def test_numbers_of_the_method_may_change_and_that_is_said():
    other = regrow.DSR(sparsity=0.8, period=3, until=50, threshold=0.2)
    run = Run(other)
    with pytest.warns(
        UserWarning, match=r"goes on with period=3, until=50, threshold=0\.2; if that is not meant"
    ) as said:
        run.sparse.load_state_dict(Run(METHODS["DSR"]).train(4).sparse.state_dict())
    assert [warning.filename for warning in said] == [__file__]
    assert run.train(2).sparse.num_steps == 6


def change(**changes):
    return lambda state: state | changes


def without(key):
    return lambda state: {name: value for name, value in state.items() if name != key}


def less_by_one(masks):
    name, mask = next(iter(masks.items()))
    mask.view(-1)[mask.view(-1).nonzero()[0]] = False
    return masks | {name: mask}


DAMAGE = {
    "no state": lambda state: {"weights": 3},
    "no mapping": lambda state: [state],
    "an unknown key": change(nonsense=1),
    "no goal": without("goal"),
    "no masks": without("masks"),
    "a later version": change(version=3),
    "a step in words": change(step="four"),
    "a negative step": change(step=-1),
    "a seed of None": change(seed=None),
    "a short goal": change(goal=(3,)),
    "a goal beyond the layer": change(goal=(10_000, 3)),
    "another memory": change(memory={"H": 1.0}),
    "a memory without its threshold": change(memory={}),
    "a goal in words": change(goal="all"),
    "a mask that lost a weight": lambda state: state | {"masks": less_by_one(state["masks"])},
    "a threshold that is not finite": change(memory={"threshold": float("nan")}),
    "a history of numbers": change(history=(1, 2)),
    "a history of other layers": change(history=({"step": 1, "pruned": {}, "grown": {}, "threshold": None},)),
    "a history that is a number": change(history=3),
    "layers that are a number": change(layers=3),
    "a budget that is not held": change(budget=70),
    "an empty layer": lambda state: state | {
        "masks": {name: torch.zeros_like(mask) for name, mask in state["masks"].items()}
    },
    "something beside the weights": change(beside={"sign": {}}),
    "masks of numbers": lambda state: state | {"masks": {name: mask.int() for name, mask in state["masks"].items()}},
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_state_is_refused_and_nothing_is_taken(what):
    run = Run(METHODS["DSR"]).train(3)
    before = copy.deepcopy((run.sparse.state_dict(), run.model.state_dict()))
    with pytest.raises(ValueError, match=r"state|the mask of"):
        run.sparse.load_state_dict(DAMAGE[what](Run(METHODS["DSR"], seed=1).train(5).sparse.state_dict()))
    assert same(before[0], run.sparse.state_dict())
    assert same(dict(before[1]), dict(run.model.state_dict()))


def test_the_last_rewirings_are_kept_and_the_totals_of_all(monkeypatch):
    monkeypatch.setattr(steps, "MOST_RECORDS", 4)
    run, heard = Run(METHODS["DSR"]), []
    run.sparse.on_rewire.append(heard.append)
    run.train(20)
    assert [record.step for record in run.sparse.history] == [14, 16, 18, 20]
    assert run.sparse.history == heard[-4:]
    totals = run.sparse.totals
    assert totals.pruned == {name: sum(own.pruned[name] for own in heard) for name in totals.pruned}
    assert totals.grown == {name: sum(own.grown[name] for own in heard) for name in totals.grown}
    other = Run(METHODS["DSR"], seed=3)
    other.sparse.load_state_dict(run.sparse.state_dict())
    assert other.sparse.history == run.sparse.history
    assert other.sparse.totals == totals


def test_a_state_without_rewirings_begins_the_totals_anew():
    run = Run(METHODS["DSR"])
    fresh = copy.deepcopy(run.sparse.state_dict())
    run.train(6).sparse.load_state_dict(fresh)
    assert run.sparse.totals is None
    run.train(2)
    assert run.sparse.totals == run.sparse.history[0]


def test_a_state_of_coarse_units_fits_the_masks_it_has():
    method = regrow.SET(sparsity=0.77, period=2, granularity="channel")
    run = Run(method).train(4)
    model = copy.deepcopy(run.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = regrow.attach(model, optimizer, method, start=run.sparse.masks())
    assert other.target < run.sparse.target, "units do not fill the budget, and masks are what they hold"
    other.load_state_dict(run.sparse.state_dict())
    assert other.target == run.sparse.target


def test_a_state_loads_into_weights_of_another_precision():
    run, other = Run(METHODS["SNFS"]), Run(METHODS["SNFS"])
    other.model.float()
    other.x = other.x.float()
    other.sparse.mask_gradients()
    other.sparse.load_state_dict(run.train(4).sparse.state_dict())
    assert other.train(2).sparse.num_steps == 6
