"""Graphs that make dense weights by themselves, as on a GPU: what holds of operators holds of these, too."""

import pytest
import torch
from test_operators import (  # noqa: F401 - run here once more
    METHODS,
    Training,
    counters,
    cross_entropy,
    test_a_copy_has_values_of_its_own,
    test_a_layer_may_go_down_to_one_weight_and_up_again,
    test_blocks_that_are_compiled_one_by_one_share_a_graph,
    test_freezing_another_precision_and_other_memory_are_followed,
    test_growth_by_gradient_adds_up_all_uses_of_a_layer,
    test_in_inference_mode,
    test_layers_that_are_used_twice_or_read_their_weight,
    test_no_dense_weight_is_kept_for_backward,
    test_other_values_for_one_call,
    test_pictures_keep_their_format,
    test_values_of_another_topology_are_refused,
    test_values_that_changed_since_the_forward_pass_are_noticed,
)
from test_packed_layers import LAYERS, gradients, pair
from torch.utils.checkpoint import checkpoint

from regrow.storage.packed import places
from regrow.storage.packed.layers import packed_slots


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(places, "has_kernels", lambda device: False)
    torch._dynamo.reset()


def computes_in_graphs(model):
    return all(slot.stub.index is not None for slot in packed_slots(model).values())


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["DSR", "SET"])
def test_twenty_rewirings_in_one_graph(name, precision):
    plain, compiled = Training(METHODS[name]), Training(METHODS[name])
    plain.train(plain.model, precision=precision)
    compiled.train(torch.compile(compiled.model, backend="aot_eager", fullgraph=True), precision=precision)
    assert computes_in_graphs(compiled.model)
    assert counters["stats"]["unique_graphs"] == 1
    assert len(compiled.sparse.history) == 20
    assert compiled.is_same_as(plain)


def test_inductor_makes_one_graph_too():
    plain, compiled = Training(METHODS["DSR"]), Training(METHODS["DSR"])
    plain.train(plain.model)
    compiled.train(torch.compile(compiled.model, fullgraph=True))
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(compiled.model.state_dict(), plain.model.state_dict())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_those_of_a_dense_layer(name):
    layer, shape = LAYERS[name]
    dense, packed = pair(layer, "dense")
    assert computes_in_graphs(packed)
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True)
    x = torch.randn(shape, dtype=torch.float64)
    (dx, biases), (dx_packed, biases_packed) = (gradients(m, x, lambda y: y.sin().sum()) for m in (dense, compiled))
    torch.testing.assert_close(dx_packed, dx)
    torch.testing.assert_close(biases_packed, biases)
    (slot,) = packed_slots(packed).values()
    torch.testing.assert_close(packed.packed_values.grad, slot.places.collect(dense.weight.grad))


def test_growth_by_gradient_stays_with_operators_which_see_dense_gradients():
    assert not computes_in_graphs(Training(METHODS["RigL"]).model)


def test_blocks_may_be_checkpointed_by_their_user():
    plain, compiled = Training(METHODS["DSR"]), Training(METHODS["DSR"])
    blocks = compiled.model[1:4]

    def forward(x):
        return compiled.model[4](checkpoint(blocks, compiled.model[0](x), use_reentrant=False))

    plain.train(plain.model, 3)
    compiled.train(torch.compile(forward, backend="aot_eager"), 3)
    assert compiled.is_same_as(plain)
