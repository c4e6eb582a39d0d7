"""The vector of packed values in other hands: loaded, replaced, averaged, and refused where it does not fit."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load, save
from test_packed import METHODS, Run, two_groups
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

import regrow

OTHER_TOPOLOGY = r"belong to another topology .* sparse\.load_state_dict"


def through_torch(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


COPIES = {
    "cloned": lambda state: {name: tensor.clone() for name, tensor in state.items()},
    "copied": copy.deepcopy,
    "saved": through_torch,
    "saved without its metadata": lambda state: load(save(dict(state))),
    "averaged": lambda state: {name: 0.9 * tensor + 0.1 * tensor for name, tensor in state.items()},
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("optimizer", [None, two_groups])
def test_values_of_another_topology_are_refused_until_their_places_come(how, optimizer):
    run = Run(METHODS["SET"], **({"optimizer": optimizer} if optimizer else {})).train(2)
    output = run.model.eval()(run.images)
    model, sparse = COPIES[how](run.model.state_dict()), copy.deepcopy(run.sparse.state_dict())
    run.train(2)
    run.backward()
    run.model.load_state_dict(model)
    for use in (lambda: run.model(run.images), lambda: run.model[6].weight, run.optimizer.step, run.sparse.detach):
        with pytest.raises(RuntimeError, match=OTHER_TOPOLOGY):
            use()
    run.sparse.load_state_dict(sparse)
    torch.testing.assert_close(run.model(run.images), output)
    run.train(1)


def test_values_go_back_to_the_topology_they_are_of():
    run = Run(METHODS["SET"]).train(1)
    state = COPIES["cloned"](run.model.state_dict())
    run.model.load_state_dict(state)
    run.train(1)
    now = COPIES["cloned"](run.model.state_dict())
    run.model.load_state_dict(state)
    with pytest.raises(RuntimeError, match=OTHER_TOPOLOGY):
        run.model(run.images)
    run.model.load_state_dict(now)
    run.model(run.images)


def test_values_that_wait_for_their_places_are_not_passed_on_as_others():
    run = Run(METHODS["SET"]).train(1)
    state = COPIES["cloned"](run.model.state_dict())
    run.train(1)
    run.model.load_state_dict(state)
    run.model.load_state_dict(COPIES["cloned"](run.model.state_dict()))
    with pytest.raises(RuntimeError, match=OTHER_TOPOLOGY):
        run.model(run.images)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_with_half_the_bits_is_of_its_topology(dtype):
    run = Run(METHODS["SET"]).train(2)
    model = {name: tensor.to(dtype) for name, tensor in run.model.state_dict().items()}
    sparse = copy.deepcopy(run.sparse.state_dict())
    run.model.load_state_dict(model)
    run.train(2)
    run.model.load_state_dict(model)
    run.sparse.load_state_dict(sparse)
    run.train(2)


def test_a_state_without_marks_is_taken_as_it_is():
    run = Run(METHODS["SET"]).train(1)
    state = run.model.state_dict()
    assert set(state) - {name for name, _ in run.model.named_parameters()} >= {"packed_values_topology"}
    unmarked = {name: tensor for name, tensor in state.items() if not name.endswith("_topology")}
    Run(METHODS["SET"], seed=5).model.load_state_dict(unmarked)
    wrong = {**state, "packed_values": torch.zeros(3)}
    with pytest.raises(RuntimeError, match="size mismatch for packed_values"):
        run.model.load_state_dict(wrong)
    run.train(1)


def test_a_file_cannot_be_written_of_values_in_the_wrong_places_but_one_that_is_read_brings_both(tmp_path):
    run, other = Run(METHODS["SET"]), Run(METHODS["SET"], seed=5)
    regrow.save(tmp_path / "file", run.model, run.sparse)
    other.model.load_state_dict(run.model.state_dict())
    with pytest.raises(RuntimeError, match=OTHER_TOPOLOGY):
        regrow.save(tmp_path / "wrong", other.model, other.sparse)
    regrow.load(tmp_path / "file", other.model)
    assert torch.equal(other.model(run.images), run.model(run.images))


def test_marks_go_with_copies_and_away_with_the_sparsifier():
    run = Run(METHODS["SET"])
    state = run.model.state_dict()
    copies = copy.deepcopy(run.model), pickle.loads(pickle.dumps(run.model))
    run.train(2)
    for twin in copies:
        twin.load_state_dict(state)
        twin(run.images)
        twin.load_state_dict(run.model.state_dict())
        with pytest.raises(RuntimeError, match=OTHER_TOPOLOGY):
            twin(run.images)
    wrapped = nn.ModuleDict({"inner": run.model})
    assert "inner.packed_values_topology" in wrapped.state_dict()
    wrapped.load_state_dict(wrapped.state_dict())
    run.sparse.detach()
    assert not run.model._state_dict_hooks
    assert not run.model._load_state_dict_pre_hooks
    assert vars(run.model).keys() == vars(nn.Sequential()).keys()
    assert set(run.model.state_dict()) == set(Run(METHODS["SET"], "dense").model.state_dict())


# Other tensors in the vector's stead


def test_a_functional_call_computes_with_the_values_it_is_given():
    run = Run(METHODS["Static"])
    own = run.model.packed_values
    expected = run.model(run.images)
    for values in (own.detach().clone().requires_grad_(), own.detach().requires_grad_()):
        output = functional_call(run.model, {"packed_values": values}, run.images)
        assert torch.equal(output, expected)
        output.sum().backward()
        assert values.grad.abs().sum() > 0
        assert own.grad is None
    zeros = functional_call(run.model, {"packed_values": torch.zeros_like(own)}, run.images)
    assert not torch.equal(zeros, expected)
    step = own - 0.1 * own
    functional_call(run.model, {"packed_values": step}, run.images).sum().backward()
    assert own.grad.abs().sum() > 0
    with torch.inference_mode():
        functional_call(run.model, {"packed_values": torch.zeros_like(own)}, run.images)


def test_transformations_of_functions_are_refused():
    run = Run(METHODS["Static"])

    def loss(values):
        return functional_call(run.model, {"packed_values": values}, run.images).sum()

    with pytest.raises(RuntimeError, match=r"torch\.autograd\.grad instead"):
        torch.func.grad(loss)(run.model.packed_values.detach())


def test_assigned_values_are_computed_with_but_not_trained_by_an_optimizer_that_has_others():
    run = Run(METHODS["Static"])
    state = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    state["packed_values"] *= 2
    weight = run.model[6].weight.detach().clone()
    run.model.load_state_dict(state, assign=True)
    assert torch.equal(run.model[6].weight, 2 * weight)
    run.backward()
    with pytest.raises(RuntimeError, match="another packed_values than the one its optimizer trains"):
        run.optimizer.step()


def test_values_may_change_before_the_way_back_where_they_are_not_needed_again():
    for model in (nn.Linear(6, 4), nn.ConvTranspose1d(6, 4, 1)):
        x = torch.randn(2, 6, *[1] * (model.weight.ndim - 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=2), storage=regrow.Packed(kernels="sparse"))
        for is_refused in (False, True):
            loss = model(x).sum()
            model.packed_values.grad = torch.ones_like(model.packed_values)
            optimizer.step()  # the second one rewires
            if is_refused:
                with pytest.raises(RuntimeError, match="between a forward and its backward"):
                    loss.backward()
            else:
                loss.backward()


@pytest.mark.parametrize(("method", "storage"), [(METHODS["Static"], "packed"), (regrow.Hashed(sparsity=0.9), "dense")])
def test_a_weight_that_is_computed_cannot_be_set(method, storage):
    run = Run(method, storage)
    before = run.model[6].weight.detach().clone()
    for weight in (nn.Parameter(torch.ones(20, 128)), None):
        with pytest.raises(AttributeError, match="computed from values and cannot be set"):
            run.model[6].weight = weight
    with pytest.raises(TypeError, match="cannot assign"):
        run.model[6].weight = torch.ones(20, 128)
    run.model[6].bias = nn.Parameter(torch.ones(20).double())
    assert torch.equal(run.model[6].weight, before)
    run.model.load_state_dict(run.model.state_dict(), assign=True)
    run.model(run.images)


def test_a_gradient_that_waits_for_its_step_goes_with_the_weights():
    plain, run = Run(METHODS["Static"], "dense"), Run(METHODS["Static"], "dense")
    masks = run.sparse.masks()
    for each in (plain, run):
        each.backward()
    run.sparse.detach()
    sparse = regrow.attach(run.model, run.optimizer, METHODS["Static"], storage="packed", start=masks)
    sparse.detach()
    for name, parameter in plain.model.named_parameters():
        expected = parameter.grad * masks[name] if name in masks else parameter.grad
        assert torch.equal(run.model.get_parameter(name).grad, expected)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_an_optimizer_that_knows_parameters_by_name_knows_the_vector_and_then_the_weights_again(num_groups):
    def named(model):
        parameters = list(model.named_parameters())
        groups = [{"params": parameters[i::num_groups]} for i in range(num_groups)]
        return torch.optim.SGD(groups, lr=0.1)

    def names(run):
        held = [list(zip(group["param_names"], group["params"], strict=True)) for group in run.optimizer.param_groups]
        for group in held:
            assert all(run.model.get_parameter(name) is parameter for name, parameter in group)
        return [[name for name, _ in group] for group in held]

    run = Run(METHODS["Static"], optimizer=named)
    assert names(run)[0][0] == "packed_values"
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    run.sparse.detach()
    assert names(run) == names(Run(METHODS["Static"], "dense", named))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_average_over_rewirings_by_others_is_refused(compiled):
    run = Run(METHODS["SET"])
    average = AveragedModel(run.model)
    forward = torch.compile(average, backend="eager") if compiled else average
    run.train(1)
    average.update_parameters(run.model)
    torch.testing.assert_close(forward(run.images), run.model(run.images))
    before = average.module.packed_values.detach().clone()
    run.train(3)
    forward(run.images)  # nobody wrote into it since
    assert torch.equal(average.module.packed_values, before)
    average.update_parameters(run.model)
    with pytest.raises(RuntimeError, match=r"which has the old topology; .*regrow\.Average"):
        forward(run.images)
    run.model.load_state_dict(average.module.state_dict())
    with pytest.raises(RuntimeError, match="belong to another topology"):
        run.model(run.images)


def test_a_copy_that_is_trained_by_itself_may_be():
    run = Run(METHODS["SET"])
    alone = copy.deepcopy(run.model)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(4):
        run.train(1)
        cross_entropy(alone(run.images), run.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin_model, _, twin = copy.deepcopy((run.model, run.optimizer, run.sparse))
    run.train(4)
    with torch.no_grad():
        twin_model.packed_values.mul_(0.5)
    twin_model(run.images)
    assert twin.num_steps == 4
