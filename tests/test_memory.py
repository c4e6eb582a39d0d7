"""What packed training holds in memory, and that nothing of the size of all positions ever exists."""

import gc
import tracemalloc

import pytest
import torch
from torch import nn

import regrow
from benchmarks.measure import peak_allocated_bytes
from benchmarks.memory import Held, formula, held_by
from regrow.core.evidence import Evidence, Part
from regrow.core.quantities import Quantities

CPU = torch.device("cpu")


def test_the_peak_is_the_most_that_is_held_at_once():
    def work() -> None:
        first = torch.empty(1_000_000)  # 4 MB
        second = first + 1  # 8 MB
        del first  # 4 MB
        third = torch.empty(500_000)  # 6 MB
        del second, third

    assert peak_allocated_bytes(work, CPU) == pytest.approx(8e6, rel=0.001)


@pytest.mark.parametrize(("make", "state"), [(torch.optim.SGD, 4), (torch.optim.Adam, 8)])
def test_values_gradient_and_state_take_four_bytes_for_each_active_weight(make, state):
    model = nn.Linear(200, 100)  # 20,000 positions, of which 2,000 are active
    settings = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.1, **settings)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9), storage="packed")
    model(torch.randn(4, 200)).square().mean().backward()
    optimizer.step()
    # two orders of two bytes each, and where 100 rows and 200 columns begin and end, in four
    indices = 2 * 2 * 2_000 + 4 * (101 + 201)
    held = held_by(sparse, optimizer)
    assert held == Held(values=8_000, indices=indices, gradient=8_000, state=state * 2_000)
    expected = 20_000 * formula(0.1, "packed", "Adam" if state == 8 else "momentum")
    assert held.total == pytest.approx(expected + 4 * (101 + 201))


def test_dense_storage_has_a_byte_of_mask_for_every_position():
    model = nn.Linear(200, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, regrow.DSR(sparsity=0.9))
    model(torch.randn(4, 200)).square().mean().backward()
    optimizer.step()
    assert held_by(sparse, optimizer).total == 20_000 * formula(0.1, "dense", "momentum") == 260_000


@pytest.mark.parametrize("method", [regrow.DSR, regrow.SET, regrow.Static], ids=lambda method: method.__name__)
def test_nothing_of_the_size_of_all_positions_ever_exists(method):
    """Sixteen million positions: a bit for each would be 2 MB, which all that ever exists stays below.

    Without measuring which kernels are faster, for which a layer of this size is made dense once.
    """

    def work() -> None:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4000, 4000), nn.ReLU(), nn.Linear(4000, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rewired = {} if method is regrow.Static else {"period": 1}
        chosen = method(sparsity=0.999, **rewired)
        sparse = regrow.attach(model, optimizer, chosen, storage=regrow.Packed(kernels="sparse"))
        for _ in range(3):
            model(torch.randn(4, 4000)).square().mean().backward()
            optimizer.step()
        assert sparse.active == 16_008

    assert peak_allocated_bytes(work, CPU) < 4000 * 4000 / 8


def test_nor_in_the_writing_and_reading_of_a_file(tmp_path):
    def make() -> tuple[nn.Module, regrow.Sparsifier]:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4000, 4000), nn.ReLU(), nn.Linear(4000, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        packed = regrow.Packed(kernels="sparse")
        return model, regrow.attach(model, optimizer, regrow.Static(sparsity=0.999), storage=packed)

    def work() -> None:
        regrow.save(tmp_path / "m.safetensors", model, sparse)
        regrow.load(tmp_path / "m.safetensors", other)

    (model, sparse), (other, _) = make(), make()
    tracemalloc.start()
    try:
        assert peak_allocated_bytes(work, CPU) < 4000 * 4000 / 8
        assert tracemalloc.get_traced_memory()[1] < 4000 * 4000 / 8  # that of numpy
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("name", [name for name, cls in sorted(regrow.METHODS.items()) if cls.rewires])
def test_a_rewiring_leaves_nothing_for_the_garbage_collector(name, storage):
    """A cycle of references would keep the evidence of one rewiring beside that of the next."""
    cls = regrow.METHODS[name]
    if storage == "packed" and not cls.needs <= regrow.Packed.offers:
        pytest.skip("packed storage refuses it")
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = regrow.attach(model, optimizer, cls(sparsity=0.8, period=1), storage=storage)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [thing for thing in gc.garbage if isinstance(thing, Evidence | Part | Quantities)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert sparse.totals is not None
    assert not left
