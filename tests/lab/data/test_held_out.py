"""A part of the training set is held out for searching, and the test stays unread."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from text_runs import a_text, on

from regrow.lab import data
from regrow.lab.config import make_config
from regrow.lab.data import idx
from regrow.lab.data.cache import FetchError
from regrow.lab.run.folder import read_run
from regrow.lab.run.loop import Options, train


def greys(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    return sorted(int(image[0, 0, 0]) for images, _ in batches for image in images)


def seen_by(seed: int, share: float = 0.25) -> data.Data:
    table = {"name": "toy_idx", "held_out": share}
    config = make_config({"method": "Dense", "data": table, "seed": seed, "epochs": 1, "batch_size": 10})
    return config.data.for_run(config.data.open("cpu"), config)


def test_what_is_held_out_is_tested_on_and_never_trained_on(toy: Path):
    seen = seen_by(0)
    tested = greys(seen.evaluation_batches(4, device=torch.device("cpu")))
    trained = {tuple(greys(seen.training_batches(epoch, 0, 10, device=torch.device("cpu")))) for epoch in range(3)}
    assert len(tested) == 10
    assert trained == {tuple(sorted(set(range(40)) - set(tested)))}


def test_the_seed_says_which(toy: Path):
    tested = [greys(seen_by(seed).evaluation_batches(40, device=torch.device("cpu"))) for seed in (0, 0, 1)]
    assert tested[0] == tested[1] != tested[2]


def test_images_keep_their_labels(toy: Path):
    for images, labels in seen_by(3).evaluation_batches(4, device=torch.device("cpu")):
        assert torch.equal(images[:, 0, 0, 0].long() % 10, labels)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(gzip.compress(b"anything"))])
def test_the_test_may_be_unreadable(toy: Path, tmp_path: Path, spoil):
    for name in idx.TEST_FILES:
        spoil(toy / name)
    settings = {"method": "Dense", "epochs": 1, "batch_size": 10}
    config = make_config({**settings, "data": {"name": "toy_idx", "held_out": 0.25}})
    train(config, tmp_path, Options(threads=1))
    assert read_run(tmp_path / config.id).summary is not None
    with pytest.raises(FetchError, match="nowhere to get it"):
        train(make_config({**settings, "data": "toy_idx"}), tmp_path, Options(threads=1))


def test_the_test_of_a_text_may_be_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from regrow.lab.data import text

    path = a_text(tmp_path)
    config, read, end = on(path, data={"held_out": 0.05}), text._read, round(0.95 * path.stat().st_size)
    read_to = []

    def watch(path: Path, first: int, last: int, device: torch.device) -> torch.Tensor:
        read_to.append(last)
        return read(path, first, last, device)

    monkeypatch.setattr(text, "_read", watch)
    train(config, tmp_path, Options(threads=1))
    assert max(read_to) == end


def test_runs_with_nothing_held_out_keep_their_ids():
    plain = make_config({"method": "DSR", "sparsity": 0.99})
    assert plain.id == make_config({"method": "DSR", "sparsity": 0.99, "data": {"held_out": 0.0}}).id
    held = make_config({"method": "DSR", "sparsity": 0.99, "data": {"held_out": 0.1}})
    assert held.id != plain.id
    assert plain.data.for_searching() == held.data == held.data.for_searching()


@pytest.mark.parametrize("share", [-0.1, 1.0, "a tenth"])
def test_a_share_that_is_none_is_refused(share: object):
    with pytest.raises(ValueError, match=r"data.held_out must be in \[0, 1\)"):
        make_config({"method": "Dense", "data": {"name": "mnist", "held_out": share}})


def test_a_share_that_leaves_nothing_is_refused(toy: Path):
    with pytest.raises(ValueError, match="leaves nothing of 40 images on one side"):
        seen_by(0, share=0.001)


def test_data_that_cannot_hold_out_say_so():
    with pytest.raises(ValueError, match="synthetic cannot hold out a part"):
        data.read_data("synthetic").for_searching()
