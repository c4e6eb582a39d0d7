"""Order, augmentation and normalization are pure functions of seed and epoch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from regrow.lab import data


@pytest.fixture(scope="module")
def grey() -> data.Dataset:
    return data.load("synthetic", device="cpu")


@pytest.fixture(scope="module")
def colour() -> data.Dataset:
    return data.load("synthetic_colour", device="cpu")


def test_an_epoch_visits_every_image_once(grey: data.Dataset) -> None:
    indices = torch.cat(list(data.whole_batches(grey.order(epoch=3, seed=1), 100)))
    assert torch.equal(indices.sort().values, torch.arange(grey.num_train))


def test_batches_have_one_size_and_the_rest_is_dropped(grey: data.Dataset) -> None:
    assert [len(batch) for batch in data.whole_batches(grey.order(0, 0), 300)] == [300] * 6


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    order = data.epoch_order(1000, epoch=2, seed=5)
    assert torch.equal(order, data.epoch_order(1000, epoch=2, seed=5))
    others = [data.epoch_order(1000, epoch=e, seed=s) for e, s in ((3, 5), (2, 6), (5, 2))]
    for other in others:
        assert (order == other).float().mean() < 0.02


def test_the_order_is_pinned() -> None:
    """Changing it would make resumed runs differ from whole ones."""
    assert data.epoch_order(8, epoch=0, seed=0).tolist() == [5, 2, 6, 7, 3, 4, 1, 0]
    assert data.draw_crops(3, epoch=0, seed=0).tolist() == [[8, 3, 1], [5, 7, 1], [1, 1, 1]]


def test_the_order_leaves_torch_generators_alone(colour: data.Dataset) -> None:
    before = torch.get_rng_state()
    colour.order(0, 0)
    colour.draws(0, 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("batch_size", [0, -1, 2001])
def test_a_batch_size_that_gives_no_batch_is_refused(grey: data.Dataset, batch_size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 2000"):
        grey.training_batches(0, 0, batch_size)


def pad_crop_flip(images: torch.Tensor, draws: torch.Tensor, pad: int) -> torch.Tensor:
    """The same, one image at a time, as the paper words it."""
    padded = functional.pad(images.float(), (pad,) * 4, mode="reflect")
    height, width = images.shape[2:]
    out = []
    for image, (top, left, flip) in zip(padded, draws.tolist(), strict=True):
        crop = image[:, top : top + height, left : left + width]
        out.append(crop.flip(-1) if flip else crop)
    return torch.stack(out).to(images.dtype)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(5, 12), st.integers(5, 12), st.integers(0, 4), st.integers())
def test_crop_and_flip_is_pad_then_crop_then_flip(b: int, c: int, h: int, w: int, pad: int, seed: int) -> None:
    images = torch.arange(b * c * h * w).remainder(251).to(torch.uint8).view(b, c, h, w)
    draws = data.draw_crops(b, epoch=0, seed=seed, pad=pad)
    cropped = data.crop_and_flip(images, draws, pad)
    assert cropped.dtype == torch.uint8
    assert torch.equal(cropped, pad_crop_flip(images, draws, pad))


def test_draws_are_uniform() -> None:
    top, left, flip = data.draw_crops(90_000, epoch=1, seed=2).unbind(1)
    for offsets in (top, left):
        assert offsets.bincount(minlength=9).float().div(10_000).sub(1).abs().max() < 0.05
    assert flip.float().mean().item() == pytest.approx(0.5, abs=0.01)
    joint = (top * 9 + left) * 2 + flip
    assert joint.bincount(minlength=162).float().mul(162 / 90_000).sub(1).abs().max() < 0.2


def test_draws_change_with_every_epoch(colour: data.Dataset) -> None:
    first, second = (colour.draws(epoch, seed=0) for epoch in (0, 1))
    assert first is not None
    assert second is not None
    assert (first == second).all(1).float().mean() < 0.05


def test_nothing_is_drawn_where_nothing_is_augmented(grey: data.Dataset) -> None:
    assert grey.draws(0, 0) is None


def test_too_wide_a_reflection_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller pad"):
        data.crop_and_flip(torch.zeros(1, 1, 4, 4), torch.zeros(1, 3, dtype=torch.int64))


def test_the_training_batch_compiles_without_graph_breaks(colour: data.Dataset) -> None:
    draws = colour.draws(0, 0)
    compiled = torch.compile(colour.batch, fullgraph=True, backend="eager")
    for indices in data.whole_batches(colour.order(0, 0), 50)[:2]:
        for ours, plain in zip(compiled(indices, draws), colour.batch(indices, draws), strict=True):
            assert torch.equal(ours, plain)


def test_normalized_images_have_mean_0_and_deviation_1(colour: data.Dataset) -> None:
    images, labels = colour.batch(torch.arange(colour.num_train), None)
    assert images.dtype == torch.float32
    assert images.mean((0, 2, 3)).abs().max() < 1e-3
    assert (images.std((0, 2, 3)) - 1).abs().max() < 1e-3
    assert torch.equal(labels, colour.train_labels)


def test_evaluation_sees_every_test_image_in_order(colour: data.Dataset) -> None:
    parts = list(colour.evaluation_batches(150))
    assert [len(labels) for _, labels in parts] == [150, 150, 150, 50]
    assert torch.equal(torch.cat([labels for _, labels in parts]), colour.test_labels)
    whole = data.normalize(colour.test_images, colour.mean, colour.std)
    assert torch.equal(torch.cat([images for images, _ in parts]), whole)


@pytest.mark.parametrize(("name", "shape"), [("synthetic", (1, 28, 28)), ("synthetic_colour", (3, 32, 32))])
def test_synthetic_sets_are_pictures_like_any_other(name: str, shape: tuple[int, ...]) -> None:
    one, other = data.load(name, device="cpu"), data.load(name, device=torch.device("cpu"))
    assert one.image_shape == shape
    assert one.train_images.dtype == torch.uint8
    assert one.train_labels.dtype == torch.int64
    assert one.train_labels.bincount().tolist() == [200] * 10
    assert torch.equal(one.train_images, other.train_images)
    assert not torch.equal(one.train_images, data.synthesize(image_shape=shape, seed=1).train_images)


@pytest.mark.parametrize("name", ["synthetic", "synthetic_colour"])
def test_synthetic_sets_can_be_learnt_but_not_at_once(name: str) -> None:
    torch.manual_seed(0)
    dataset = data.load(name, device="cpu")
    channels, height, width = dataset.image_shape
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def accuracy() -> float:
        parts = [(model(images).argmax(1) == labels) for images, labels in dataset.evaluation_batches(100)]
        return torch.cat(parts).float().mean().item()

    assert accuracy() < 0.35
    for epoch in range(3):
        draws = dataset.draws(epoch, seed=0)
        for indices in data.whole_batches(dataset.order(epoch, seed=0), 100):
            images, labels = dataset.batch(indices, draws)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    assert 0.5 < accuracy() < 1.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_training_batch_replays_new_indices() -> None:
    dataset = data.load("synthetic_colour", device="cuda")
    first, second = data.whole_batches(dataset.order(0, 0), 100)[:2]
    draws = dataset.draws(0, 0)
    static = first.clone()
    dataset.batch(static, draws)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        images, labels = dataset.batch(static, draws)
    static.copy_(second)
    graph.replay()
    plain_images, plain_labels = dataset.batch(second, draws)
    assert torch.equal(images, plain_images)
    assert torch.equal(labels, plain_labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_order_and_draws_are_the_same_on_every_device() -> None:
    here, there = (data.epoch_order(50_000, epoch=1, seed=2, device=device) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
    here, there = (data.draw_crops(50_000, epoch=1, seed=2, device=device) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
