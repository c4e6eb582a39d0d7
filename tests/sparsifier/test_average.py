"""regrow.Average: what it averages, that it follows the topology, and that models get their own weights back."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from every_method import EVERY_STEP, can_be_packed, make
from regrow.methods import Method, method, prune
from regrow.testing import check_invariants
from test_always_true import OPTIMIZERS, methods, networks
from two_layers import sgd

NAMES = [name for name in regrow.METHODS if name != "Dense"]
STORAGES = ["dense", "packed"]
WAYS = [("SET", "dense"), ("SET", "packed"), ("Gradual", "dense"), ("Hashed", "dense")]
WAYS += [(name, "packed") for name in EVERY_STEP if can_be_packed(regrow.METHODS[name](sparsity=0.5))]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


class Run:
    """A network in training, with its average."""

    def __init__(self, name="SET", storage="dense", decay=0.9):
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        method = make(regrow.METHODS[name], sparsity=0.5, temperature=1e-3)
        if not method.rewires_every_step:
            method = make(regrow.METHODS[name], sparsity=0.5, period=2, until=20)
        kind = regrow.Packed(kernels="sparse") if storage == "packed" else storage
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage=kind)
        self.average = regrow.Average(self.model, self.sparse, decay=decay)

    def train(self, num_steps=1):
        for _ in range(num_steps):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(self.sparse.num_steps))
            self.model(x).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average.update()
        return self

    def state(self):
        trio = {"model": self.model, "optimizer": self.optimizer, "sparse": self.sparse, "average": self.average}
        return copy.deepcopy({name: own.state_dict() for name, own in trio.items()})

    def load(self, state):
        for name in ("model", "optimizer", "sparse", "average"):
            getattr(self, name).load_state_dict(state[name])
        return self

    def plain(self):
        """The average as a dense model."""
        model = network().eval()
        self.average.apply_to(model)
        return model


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


# What it is


def by_hand(average, weights, decay):
    return decay * average + (1 - decay) * weights


@method
class MoveOne(Method):
    """Prunes the smallest of four weights, and grows what is free."""

    def prune_counts(self, tally, step):
        return prune.fraction_of_each(1, tally.active, tally.free)

    def prune_units(self, evidence, counts, memory):
        return evidence.smallest(counts)


regrow.METHODS.pop("MoveOne")  # no other test shall meet it


@pytest.mark.parametrize("storage", STORAGES)
def test_a_pruned_place_ends_at_0_and_a_grown_one_begins_there(storage):
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0, 1.0, 2.0, 8.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    masks = {"weight": torch.tensor([[True, True, True, False]])}
    sparse = regrow.attach(layer, optimizer, MoveOne(sparsity=0.25, period=2), start=masks, storage=storage)
    average = regrow.Average(layer, sparse, decay=0.5)
    seen, plain = [], nn.Linear(4, 1, bias=False)
    for gradient in ([1.0, 0, 0, 0], [1.0, 0, 0, 0], [0, 0, 0, -6.0]):
        (layer.weight * torch.tensor([gradient])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        average.apply_to(plain)
        seen.append(plain.weight.flatten().tolist())
    assert seen == [
        [3.5, 1.0, 2.0, 0.0],  # the weights are 3, 1, 2
        [2.75, 0.0, 2.0, 0.0],  # 2, -, 2: the second was pruned after this step, and the fourth grown
        [2.375, 0.0, 2.0, 3.0],  # 2, -, 2, 6
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    model=networks(),
    method=methods(),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    storage=st.sampled_from(STORAGES),
    updates=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_it_is_what_one_works_out_by_hand_from_masked_weights(model, method, optimizer, dtype, storage, updates):
    model = model.to(dtype)
    plain, images = (
        copy.deepcopy(model).to(torch.promote_types(dtype, torch.float32)),
        torch.randn(4, 2, 4, 4).to(dtype),
    )
    trainer = OPTIMIZERS[optimizer](model.parameters())
    try:
        sparse = regrow.attach(model, trainer, method, storage=storage if can_be_packed(method) else "dense")
    except ValueError as error:
        if "cannot leave one unit in each" not in str(error):
            raise
        return
    average, layers = regrow.Average(model, sparse, decay=0.75), [layer.name for layer in sparse.layers]
    expected = dense_weights(model, layers)
    for is_updated in updates:
        model(images).square().mean().backward()
        trainer.step()
        trainer.zero_grad()
        masks, weights = sparse.masks(), dense_weights(model, layers)
        for name, mask in masks.items():
            expected[name][~mask] = 0
        if is_updated:
            average.update()
            expected = {name: by_hand(expected[name], weights[name], 0.75) for name in layers}
        average.apply_to(plain)
        averaged = dense_weights(plain, layers)
        for name, mask in masks.items():
            assert not averaged[name][~mask].any(), "outside of the mask it is exactly 0"
        torch.testing.assert_close(averaged, expected)


def dense_weights(model, names):
    modules = dict(model.named_modules())
    weights = {name: modules[name.removesuffix(".weight")].weight.detach() for name in names}
    return {name: own.clone().to(torch.promote_types(own.dtype, torch.float32)) for name, own in weights.items()}


def test_packed_it_is_as_long_as_the_budget():
    run = Run("DSR", "packed").train(5)
    assert run.average.state_dict()["tensors"]["packed_values"].numel() == run.sparse.budget


def test_decay_may_be_a_function_of_the_number_of_updates():
    run = Run("Static", decay=lambda n: n / (n + 1))
    seen = []
    for _ in range(4):
        run.train()
        seen.append(run.model[0].weight.detach().clone())
    assert run.average.num_updates == 4
    torch.testing.assert_close(run.plain()[0].weight.detach(), torch.stack(seen).mean(0))


def test_running_statistics_are_averaged_and_other_buffers_copied():
    run = Run()
    run.model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    run.average = regrow.Average(run.model, run.sparse, decay=0.5)
    first = run.model[1].running_mean.clone()
    run.train(1)
    tensors = run.average.state_dict()["tensors"]
    torch.testing.assert_close(tensors["1.running_mean"], by_hand(first, run.model[1].running_mean, 0.5))
    assert tensors["1.num_batches_tracked"] == 1
    assert torch.equal(tensors["mask"], run.model.mask)


def test_of_a_dense_model_it_is_what_torch_averages():
    model = network()
    theirs = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=False
    )
    theirs.update_parameters(model)  # the first time it only copies
    ours, optimizer = regrow.Average(model, decay=0.9), sgd(model)
    for _ in range(3):
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        ours.update()
        theirs.update_parameters(model)
    ours.apply_to(model)
    assert all(map(torch.equal, model.parameters(), theirs.module.parameters()))


def test_small_changes_count_in_half_precision():
    model = nn.Linear(4, 4).bfloat16()
    average = regrow.Average(model, decay=0.999)
    nn.init.ones_(model.weight)
    before = average.state_dict()["tensors"]["weight"]
    average.update()
    assert (average.state_dict()["tensors"]["weight"] > before).all()


# In models


@pytest.mark.parametrize(("name", "storage"), WAYS)
def test_within_applied_a_model_computes_by_the_average_and_after_it_by_its_own_weights(name, storage):
    run, x = Run(name, storage).train(5), torch.randn(3, 8)
    before, own = run.state()["model"], run.model.eval()(x)
    with run.average.applied(run.model):
        torch.testing.assert_close(run.model(x), run.plain()(x))
        with pytest.raises(RuntimeError, match="update after the with block"):
            run.average.update()
    assert same(run.state()["model"], before)
    assert torch.equal(run.model(x), own)


@pytest.mark.parametrize(("name", "storage"), WAYS)
def test_a_block_that_trains_leaves_a_network_with_its_own_weights_on_the_topology_of_now(name, storage):
    run, other, layers = Run(name, storage).train(3), network(), ["0.weight", "3.weight"]
    masks, before = run.sparse.masks(), dense_weights(run.model, layers)
    with run.average.applied(run.model):
        run.model(torch.ones(6, 8)).square().sum().backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    check_invariants(run.model, run.optimizer, run.sparse)
    after = dense_weights(run.model, layers)
    for layer, mask in run.sparse.masks().items():
        assert torch.equal(after[layer], before[layer].masked_fill(~(mask & masks[layer]), 0))
    run.train(3).average.apply_to(other)
    for layer, mask in run.sparse.masks().items():
        assert not dict(other.named_parameters())[layer][~mask].any()


def evaluate_in_vain(run):
    with run.average.applied(run.model):
        raise OSError("there is no test set")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_model_gets_its_own_weights_back_when_the_block_fails(storage):
    run = Run(storage=storage).train(5)
    before = run.state()["model"]
    with pytest.raises(OSError, match="no test set"):
        evaluate_in_vain(run)
    assert same(run.state()["model"], before)
    run.train()


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_saved_within_applied_is_the_average_with_the_masks_of_the_network(storage, tmp_path):
    run, other = Run(storage=storage).train(5), network()
    with run.average.applied(run.model):
        regrow.save(tmp_path / "average", run.model, run.sparse)
    masks = regrow.load(tmp_path / "average", other)
    assert same(masks, run.sparse.masks())
    assert same(dict(other.state_dict()), dict(run.plain().state_dict()))


@pytest.mark.parametrize(("name", "storage"), WAYS)
def test_after_detach_it_goes_into_the_dense_model(name, storage):
    run, x = Run(name, storage).train(5), torch.randn(3, 8)
    run.sparse.detach()
    run.average.apply_to(run.model.eval())
    assert torch.equal(run.model(x), run.plain()(x))
    with pytest.raises(RuntimeError, match="was detached"):
        run.average.update()


def test_names_are_those_without_wrappers():
    run = Run().train(2)
    model = torch.nn.DataParallel(network())
    run.average.apply_to(model)
    assert same(dict(model.module.named_parameters()), dict(run.plain().named_parameters()))


# Saved, copied


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_resumed_average_goes_on_to_the_same_bits(name, storage):
    if storage == "packed" and not can_be_packed(regrow.METHODS[name](sparsity=0.5)):
        pytest.skip("cannot be packed")
    run = Run(name, storage).train(5)
    buffer = io.BytesIO()
    torch.save(run.state(), buffer)
    buffer.seek(0)
    other = Run(name, storage).train(2).load(torch.load(buffer, weights_only=True))
    assert same(run.train(5).state(), other.train(5).state())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is said where there is one process
@pytest.mark.parametrize("storage", STORAGES)
def test_its_state_goes_through_torchs_distributed_checkpoint(storage, tmp_path):
    run, other = Run(storage=storage).train(5), Run(storage=storage)
    state = run.state()
    dcp.save({"average": state["average"]}, checkpoint_id=tmp_path, no_dist=True)
    loaded = {"average": other.average.state_dict()}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    assert same(run.train(3).state(), other.load(state | loaded).train(3).state())


@pytest.mark.parametrize(("name", "storage"), WAYS)
def test_four_that_are_copied_together_go_on_together(name, storage):
    run, other = Run(name, storage).train(3), Run(name, storage)
    four = (run.model, run.optimizer, run.sparse, run.average)
    other.model, other.optimizer, other.sparse, other.average = copy.deepcopy(four)
    assert same(run.train(4).state(), other.train(4).state())


def test_it_is_not_pickled():
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        pickle.dumps(Run().average)


# Refused


@pytest.mark.parametrize("storage", STORAGES)
def test_an_average_of_another_topology_is_refused_until_its_state_comes(storage):
    run = Run(storage=storage).train(4)
    state, own = run.state(), run.train(4).average.state_dict()
    with pytest.raises(
        ValueError, match="the average is of step 4, the sparsifier is at step 8; load the sparsifier's"
    ):
        run.average.load_state_dict(state["average"])
    assert same(run.average.state_dict(), own)
    run.model.load_state_dict(state["model"])
    run.sparse.load_state_dict(state["sparse"])
    for use in (run.average.update, run.average.state_dict, lambda: run.average.apply_to(run.model)):
        with pytest.raises(RuntimeError, match="load the average's state too, or make a new"):
            use()
    run.average.load_state_dict(state["average"])
    assert same(run.average.state_dict(), state["average"])


@pytest.mark.parametrize("decay", [1.0, -0.1, "0.9", None, True])
def test_a_decay_is_a_number_in_0_to_1(decay):
    with pytest.raises(ValueError, match=r"decay must be a number in \[0, 1\)"):
        Run(decay=decay)


def test_a_decay_of_a_function_is_looked_at_before_anything_is_averaged():
    run = Run(decay=lambda n: 2.0)
    before = run.average.state_dict()
    with pytest.raises(ValueError, match="decay must be"):
        run.train()
    assert same(run.average.state_dict()["tensors"], before["tensors"])


def test_what_does_not_belong_together_is_refused():
    run, other = Run(), Run()
    with pytest.raises(ValueError, match=r"kept sparse; pass .* Average\(model, sparse\)"):
        regrow.Average(run.model)
    with pytest.raises(ValueError, match="the sparsifier is of another model"):
        regrow.Average(other.model, run.sparse)
    with pytest.raises(TypeError, match="model must be"):
        regrow.Average(run.sparse, run.model)
    with pytest.raises(TypeError, match="sparse must be"):
        regrow.Average(run.model, run.optimizer)
    for model, message in [
        (nn.Linear(8, 16), r"the average is not of this model: only one of them has '0\.bias'"),
        (nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 4)), "has shape"),
        (Run(storage="packed").model, r"only one of them has '0\.weight'; apply it to the model that it follows"),
    ]:
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=message):
            run.average.apply_to(model)
        assert same(dict(model.state_dict()), dict(before))


DAMAGES = {
    "no state": (lambda state: {}, "not the state of an average"),
    "other names": (lambda state: state | {"tensors": {}}, "of another model: only one has '0.bias'"),
    "another shape": (
        lambda state: state | {"tensors": state["tensors"] | {"0.weight": torch.zeros(3)}},
        "the average of 0.weight is no torch.float32",
    ),
    "a number that is none": (lambda state: state | {"num_updates": -1}, "changed or damaged"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_state_is_refused_whole(what):
    damage, message = DAMAGES[what]
    run = Run().train(2)
    before = run.average.state_dict()
    with pytest.raises(ValueError, match=message):
        run.average.load_state_dict(damage(run.average.state_dict()))
    assert same(run.average.state_dict(), before)
