"""Model, optimizer and sparsifier can lose each other; whoever does says so, and nobody goes on as if nothing were."""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

import regrow
from regrow.testing import check_invariants
from two_layers import sgd, train, two_layers

METHOD = regrow.DSR(sparsity=0.8, period=2)
STORAGES = {"dense": {}, "packed": {"storage": "packed"}}


def attached(method=METHOD, **options):
    model = two_layers()
    optimizer = sgd(model, momentum=0.9)
    return model, optimizer, regrow.attach(model, optimizer, method, **options)


def backward(model):
    model(torch.randn(8, 20)).square().mean().backward()


# Copies


@pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize(
    "dump",
    [pickle.dumps, pickle._dumps, lambda some: torch.save(some, io.BytesIO())],
    ids=["pickle", "python", "torch"],
)
def test_optimizer_and_sparsifier_are_not_pickled_but_state_dicts_are(dump, options):
    model, optimizer, sparse = attached(**options)
    for some in (optimizer, sparse, (model, optimizer), (model, optimizer, sparse), {"sparse": sparse}):
        with pytest.raises(ValueError, match=r"cannot be pickled, .* save the state_dict\(\) of model, optimizer and"):
            dump(some)
    dump([model, model.state_dict(), optimizer.state_dict(), sparse.state_dict()])
    sparse.detach()
    dump((model, optimizer))


def test_a_hashed_networks_optimizer_is_not_pickled_either():
    _, optimizer, _ = attached(regrow.Hashed(sparsity=0.8))
    with pytest.raises(ValueError, match="cannot be pickled"):
        pickle.dumps(optimizer)


@pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_copied_optimizer_goes_on_sparsely_also_when_nobody_copied_the_sparsifier(order, options):
    trio = attached(**options)
    train(*trio[:2], 3)
    copies = copy.deepcopy([trio[i] for i in order])
    model, optimizer = (copies[order.index(i)] for i in (0, 1))
    before = sum(int(p.count_nonzero()) for name, p in model.named_parameters() if "bias" not in name)
    train(model, optimizer, 3)
    after = sum(int(p.count_nonzero()) for name, p in model.named_parameters() if "bias" not in name)
    assert before <= trio[2].budget
    assert after <= trio[2].budget
    assert trio[2].num_steps == 3


def test_the_copy_of_a_copied_trio_is_attached_to_the_copies():
    model, optimizer, sparse = copy.deepcopy(copy.deepcopy(attached()))
    train(model, optimizer, 3)
    check_invariants(model, optimizer, sparse)
    sparse.check()
    assert sparse.optimizer is optimizer
    assert sparse.num_steps == 3


def test_two_sparsifiers_on_one_optimizer_are_copied_with_it_and_let_it_go_one_by_one():
    model = two_layers()
    optimizer = sgd(model)
    first, second = (regrow.attach(model, optimizer, METHOD, layers=[f"{i}.weight"]) for i in (0, 2))
    _, twin, other = copy.deepcopy((model, optimizer, first))
    assert len(twin._optimizer_step_pre_hooks) == 2
    assert other.optimizer is twin
    first.detach()
    with pytest.raises(ValueError, match="cannot be pickled"):
        pickle.dumps(optimizer)
    second.detach()
    assert pickle.loads(pickle.dumps(optimizer)).param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


# check()


@pytest.mark.parametrize("method", [METHOD, regrow.Hashed(sparsity=0.8), regrow.RigL(sparsity=0.8, period=2)])
@pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
def test_check_finds_nothing_wrong_with_a_network_in_training_and_changes_nothing(method, options):
    if method.storage and options:
        pytest.skip("brings its own storage")
    model, optimizer, sparse = attached(method, **options)
    for _ in range(4):
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        sparse.check()
        assert str(before) == str((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer)
    sparse.check()
    model.to(torch.float64)
    sparse.check()


def loaded_from_elsewhere(model, optimizer, sparse):
    model.load_state_dict(two_layers().state_dict())


def averaged_over_topologies(model, optimizer, sparse):
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(4):
        train(model, optimizer)
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())


def assigned(model, optimizer, sparse):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def layer_replaced(model, optimizer, sparse):
    model[2] = nn.Linear(model[2].in_features, model[2].out_features)


def left_out(model, optimizer, sparse):
    del optimizer.param_groups[0]["params"][0]


WRONG = {
    loaded_from_elsewhere: r"0\.weight is not 0 at [\d,]+ of the places where no weight is active",
    averaged_over_topologies: r"weight is not 0 at [\d,]+ of the places where no weight is active",
    assigned: r"another 0\.weight than the one its optimizer trains",
    layer_replaced: r"another 2\.weight than the one its optimizer trains",
    left_out: r"SGD does not hold 0\.weight any more",
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG.items(), ids=lambda some: getattr(some, "__name__", ""))
def test_check_says_what_is_wrong(wrong, sentence):
    model, optimizer, sparse = attached()
    sparse.check()
    wrong(model, optimizer, sparse)
    with pytest.raises(ValueError, match=sentence):
        sparse.check()


def test_check_of_packed_values_says_when_they_belong_to_another_topology():
    (model, optimizer, _), (other, _, sparse) = attached(storage="packed"), attached(storage="packed", seed=1)
    train(model, optimizer, 4)
    other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="belong to another topology"):
        sparse.check()


def test_check_says_that_the_model_is_gone():
    model, optimizer, sparse = attached()
    del model
    gc.collect()
    with pytest.raises(ValueError, match="is gone"):
        sparse.check()
    optimizer.step()
    assert sparse.num_steps == 1


# A step that would not be sparse


@pytest.mark.parametrize("lose", [assigned, left_out])
def test_the_optimizers_own_next_step_says_that_it_lost_its_parameters(lose):
    model, optimizer, sparse = attached()
    train(model, optimizer, 2)
    lose(model, optimizer, sparse)
    backward(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=WRONG[lose]):
        optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert sparse.num_steps == 2


@pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)
def test_an_optimizer_that_was_built_anew_is_refused_at_its_first_step(options):
    model, _, sparse = attached(**options)
    anew = torch.optim.Adam(model.parameters())
    backward(model)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"this Adam trains .*, which is kept sparse in the steps of another SGD"
        ):
            anew.step()
    sparse.detach()
    anew = torch.optim.Adam(model.parameters())
    train(model, anew)


def test_parameters_that_were_replaced_are_missed_at_the_first_step_of_their_new_optimizer():
    model, optimizer, sparse = attached()
    assigned(model, optimizer, sparse)
    anew = sgd(model)
    backward(model)
    with pytest.raises(RuntimeError, match=r"another 0\.weight than the one its optimizer trains sparsely"):
        anew.step()
    sparse.detach()
    anew.step()


def test_the_other_optimizers_of_a_training_are_left_alone():
    model, optimizer, sparse = attached(layers=["0.weight"])
    of_biases = torch.optim.Adam([p for name, p in model.named_parameters() if "bias" in name])
    critic = two_layers()
    of_critic = sgd(critic)
    for _ in range(3):
        backward(model)
        of_biases.step()
        train(critic, of_critic)
        train(model, optimizer)
    sparse.check()


def test_an_optimizer_that_gets_a_sparse_weight_later_is_refused_then():
    model, _, _sparse = attached()
    other = sgd(two_layers())
    other.step()
    other.add_param_group({"params": [model[0].weight]})
    with pytest.raises(RuntimeError, match=r"trains 0\.weight"):
        other.step()


class SharpnessAware(torch.optim.Optimizer):
    """Takes its steps by another optimizer over the same groups, as SAM does."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base = base
        self.param_groups = base.param_groups

    def step(self, closure=None):
        return self.base.step(closure)


def test_a_wrapper_around_the_optimizer_may_take_its_steps():
    model, optimizer, sparse = attached()
    train(model, SharpnessAware(optimizer), 3)
    assert sparse.num_steps == 3
    sparse.check()


def test_a_parameter_that_only_moved_within_the_model_is_found_again():
    model, optimizer, sparse = attached()
    spectral_norm(model[0])
    train(model, optimizer, 3)
    assert sparse.num_steps == 3
    sparse.check()
    parametrize.remove_parametrizations(model[0], "weight")


def test_every_step_is_looked_at_only_while_there_is_a_sparsifier():
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    gc.collect()
    before = len(hooks)
    first, second = attached(), attached()
    others = len(hooks)
    first[2].detach()
    second[2].detach()
    assert len(hooks) <= before <= others


def test_a_weight_that_became_a_shard_is_refused_with_its_name():
    model, optimizer, _sparse = attached()
    weight = model[0].weight
    weight.data = weight.data.flatten()[: weight.numel() // 2].clone()
    with pytest.raises(RuntimeError, match=r"0\.weight does not have the shape \(30, 20\) any more"):
        optimizer.step()
