"""Optimizers in the wrappers of trainers: the one inside is attached to, or the wrapper is refused by its name."""

import copy
import os
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

import regrow
from regrow.sparsifier.wrapped import owner_of_state
from regrow.testing import check_invariants

accelerate = pytest.importorskip("accelerate")
lightning = pytest.importorskip("lightning")
schedulefree = pytest.importorskip("schedulefree")
timm = pytest.importorskip("timm.version")  # its package needs torchvision's binary; one file of it does not

from lightning.pytorch.core.optimizer import LightningOptimizer  # noqa: E402

METHODS = {"DSR": regrow.DSR(sparsity=0.8, period=4), "RigL": regrow.RigL(sparsity=0.8, period=4)}
STORAGES = ("dense", regrow.Packed(kernels="sparse"))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def train(model, optimizer, num_steps, backward=torch.Tensor.backward):
    x = torch.linspace(-3, 3, 96).sin().view(8, 12)
    for _ in range(num_steps):
        optimizer.zero_grad()
        backward(mse_loss(model(x), x[:, :4]))
        optimizer.step()


def snapshot(model, optimizer):
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    seats = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    states = [dict(optimizer.state.get(parameter, {})) for parameter in model.parameters()]
    return copy.deepcopy((groups, seats, states, list(model.parameters()), list(optimizer.state)))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return all(map(same, one, other)) if isinstance(one, (list, tuple)) else one == other


def of_accelerate(model, optimizer):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True)
    return *accelerator.prepare(model, optimizer), accelerator.backward


def of_fabric(model, optimizer):
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    return *fabric.setup(model, optimizer), fabric.backward


class Passing:
    """What other people's trainers may wrap optimizers in."""

    def __init__(self, optimizer):
        self.optim = optimizer

    def __getattr__(self, name):
        return getattr(self.optim, name)


WRAPPERS = {
    "accelerate": of_accelerate,
    "Fabric": of_fabric,
    "another's": lambda model, optimizer: (model, Passing(optimizer), torch.Tensor.backward),
    "one in another": lambda model, optimizer: (model, Passing(Passing(optimizer)), torch.Tensor.backward),
}


@pytest.mark.parametrize("storage", STORAGES, ids=["dense", "packed"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_prepared_model_trains_as_in_a_plain_loop(wrap, method, storage):
    plain = network()
    its = adamw(plain)
    expected = regrow.attach(plain, its, method, storage=storage)
    train(plain, its, 9)

    model = network()
    real = adamw(model)
    prepared, wrapper, backward = wrap(model, real)
    sparse = regrow.attach(prepared, wrapper, method, storage=storage)
    assert sparse.optimizer is real
    assert [layer.name for layer in sparse.layers] == ["0.weight", "2.weight"]
    train(prepared, wrapper, 9, backward)
    assert sparse.num_steps == 9
    check_invariants(model, real, sparse)
    assert sparse.history == expected.history
    assert same(sparse.masks(), expected.masks())
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wrap", [*WRAPPERS.values(), lambda m, o: (m, LightningOptimizer(o), None)])
def test_attaching_in_mid_training_moves_nothing_but_what_becomes_inactive(wrap):
    model = network()
    real = adamw(model)
    train(model, real, 3)
    prepared, wrapper, _ = wrap(model, real)
    before = snapshot(model, real)
    sparse = regrow.attach(prepared, wrapper, METHODS["DSR"])
    (groups, seats, states, weights, _), after = before, snapshot(model, real)
    for name, number in (("0.weight", 0), ("2.weight", 2)):
        inactive = ~sparse.masks()[name]
        weights[number].data.masked_fill_(inactive, 0)
        for key in ("exp_avg", "exp_avg_sq"):
            states[number][key].masked_fill_(inactive, 0)
    assert same((groups, seats, states, weights), after[:4])


def test_lightnings_own_wrapper_is_seen_through():
    model = network()
    real = adamw(model)
    assert owner_of_state(LightningOptimizer(real)) is real
    assert owner_of_state(LightningOptimizer(Passing(real))) is real


def test_a_network_in_fabric_is_saved_by_wrapper_and_model_alike(tmp_path):
    model = network()
    prepared, wrapper, backward = of_fabric(model, adamw(model))
    sparse = regrow.attach(prepared, wrapper, METHODS["DSR"])
    train(prepared, wrapper, 5, backward)
    regrow.save(tmp_path / "wrapper.safetensors", prepared, sparse)
    regrow.save(tmp_path / "model.safetensors", model, sparse)
    for name in ("wrapper", "model"):
        fresh = network()
        assert same(regrow.load(tmp_path / f"{name}.safetensors", fresh), sparse.masks())
        assert same(dict(fresh.state_dict()), dict(model.state_dict()))


# Refused


def lookahead(optimizer):
    """timm's, of which the package itself cannot be imported everywhere."""
    folder = Path(find_spec("timm").origin).parent
    spec = spec_from_file_location("lookahead", folder / "optim" / "lookahead.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lookahead(optimizer)


def check_refused(model, optimizer, sentence, real=None):
    real = real or optimizer
    before = snapshot(model, real)
    for storage in ("dense", "packed"):
        with pytest.raises((ValueError, TypeError), match=sentence) as refusal:
            regrow.attach(model, optimizer, METHODS["DSR"], storage=storage)
        assert "\n" not in str(refusal.value)
        assert same(snapshot(model, real), before)
        assert not real._optimizer_step_pre_hooks


def test_lookahead_does_more_than_pass_on_steps():
    model = network()
    real = adamw(model)
    check_refused(model, lookahead(real), "Lookahead has AdamW inside and does more than pass on its steps", real)


def test_zero_redundancy_keeps_the_state_elsewhere(tmp_path):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = network()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        check_refused(model, optimizer, "ZeroRedundancyOptimizer", optimizer)
    finally:
        dist.destroy_process_group()


class Kept(torch.optim.Optimizer):
    """One whose state and groups are another object's."""

    def __init__(self, optimizer):
        self.hidden = (lambda: optimizer,)

    state = property(lambda self: self.hidden[0]().state)
    param_groups = property(lambda self: self.hidden[0]().param_groups)


class InAList(torch.optim.SGD):
    def __init__(self, parameters, inner):
        super().__init__(parameters, lr=0.1)
        self.all = [inner]


def test_a_wrapper_that_cannot_be_seen_through_is_refused_by_name():
    model = network()
    real = adamw(model)
    check_refused(model, Kept(real), "Kept keeps its state in another object", real)
    check_refused(model, InAList(model.parameters(), real), "InAList has AdamW inside", real)


def test_a_wrapper_that_is_no_optimizer_and_does_more_is_no_optimizer():
    model = network()
    real = adamw(model)
    wrapper = schedulefree.ScheduleFreeWrapper(real)
    check_refused(model, wrapper, "must be a torch.optim.Optimizer, got ScheduleFreeWrapper", real)


def test_something_with_an_optimizer_that_is_no_wrapper_is_no_optimizer():
    model = network()

    class Trainer:
        optimizer = adamw(model)

    check_refused(model, Trainer(), "must be a torch.optim.Optimizer, got Trainer", Trainer.optimizer)


# schedule-free ones, which have a mode


@pytest.mark.parametrize("kind", ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"])
def test_schedule_free_optimizers_may_be_in_any_mode_when_attached_to(kind):
    model = network()
    optimizer = getattr(schedulefree, kind)(model.parameters(), lr=0.01)
    sparse = regrow.attach(model, optimizer, METHODS["RigL"])
    assert not optimizer.param_groups[0]["train_mode"]
    optimizer.train()
    train(model, optimizer, 9)
    check_invariants(model, optimizer, sparse)
    optimizer.eval()
    check_invariants(model, optimizer, sparse)
