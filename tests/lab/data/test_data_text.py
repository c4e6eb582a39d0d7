"""Text as bytes: which windows are read, how its loss becomes bits per byte, and that its runs resume bit for bit."""

import os
from math import log2
from pathlib import Path

import pytest
import torch
from small_runs import assert_same_result, stop_after
from text_runs import a_text, on
from torch import nn

from regrow.lab import data
from regrow.lab.config import Config, make_config, read_config
from regrow.lab.config.experiment import nest
from regrow.lab.config.paper import merge
from regrow.lab.data import text as text_module
from regrow.lab.data.score import BITS_PER_BYTE
from regrow.lab.run.folder import RunFolder, read_run
from regrow.lab.run.loop import Options, train
from regrow.lab.run.start import begin
from regrow.lab.run.state import Training
from regrow.lab.run.steps import evaluate

TWENTY = bytes(range(100, 120))  # 18 to train on, 1 for searching, 1 to test


def opened(config: Config) -> data.Text:
    seen = config.data.for_run(config.data.open("cpu"), config)
    assert isinstance(seen, data.Text)
    return seen


def test_windows_are_cut_where_they_begin_and_tell_each_next_byte():
    text = data.Text("twenty", torch.tensor(list(TWENTY)).byte(), torch.empty(0).byte(), context=4, num_windows=3)
    inputs, targets = text.batch(torch.tensor([0, 15]), None)
    assert inputs.tolist() == [[100, 101, 102, 103], [115, 116, 117, 118]]
    assert targets.tolist() == [[101, 102, 103, 104], [116, 117, 118, 119]]
    assert inputs.dtype == targets.dtype == torch.int64


def test_the_test_is_read_side_by_side_and_every_byte_told_once():
    text = data.Text("twenty", torch.empty(0).byte(), torch.tensor(list(TWENTY)).byte(), context=4, num_windows=3)
    inputs, targets = (torch.cat(parts) for parts in zip(*text.evaluation_batches(3), strict=True))
    assert inputs.flatten().tolist() == list(range(100, 116))
    assert targets.flatten().tolist() == list(range(101, 117))  # 117, 118 and 119 fill no window


def test_windows_follow_from_seed_and_epoch_and_are_pinned():
    """Changing them would make resumed runs differ from whole ones."""
    text = data.Text("zeros", torch.zeros(1000).byte(), torch.zeros(10).byte(), context=9, num_windows=6)
    assert text.order(0, 0).tolist() == [870, 623, 798, 443, 520, 895]
    assert not torch.equal(text.order(0, 0), text.order(1, 0))
    assert not torch.equal(text.order(0, 0), text.order(0, 1))


def test_every_window_can_be_drawn_and_none_reaches_beyond_the_end():
    text = data.Text("twenty", torch.tensor(list(TWENTY)).byte(), torch.empty(0).byte(), context=4, num_windows=2000)
    counts = text.order(0, 0).bincount()
    assert len(counts) == 16
    assert counts.min() > 80  # of 125 on average


def test_a_batch_is_one_graph_without_a_look_at_the_device():
    text = data.Text("twenty", torch.tensor(list(TWENTY)).byte(), torch.tensor(list(TWENTY)).byte(), 4, 8)
    for function, chosen in ((lambda c: text.batch(c, None), text.order(0, 0)), (text.test_batch, torch.arange(4))):
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        for one, other in zip(compiled(chosen), function(chosen), strict=True):
            assert torch.equal(one, other)


def test_the_last_twentieth_is_the_test_and_the_one_before_is_for_searching(tmp_path: Path):
    path = a_text(tmp_path, bytes(range(200)))
    text = on(path, data={}).data.open("cpu")
    assert text.train.tolist() == list(range(180))
    assert text.test.tolist() == list(range(190, 200))
    searching = on(path, data={"held_out": 0.05})
    assert searching.data.open("cpu").test.tolist() == list(range(180, 190))
    assert searching.data.open("cpu").train.tolist() == list(range(180))
    assert on(path).data.for_searching() == searching.data
    shorter = on(path, data={"test_bytes": 4}).data
    assert shorter.open("cpu").test.tolist() == [190, 191, 192, 193]
    assert (shorter.tested_on, searching.data.tested_on) == ("first 4 bytes of the test", "held-out part")


def test_a_search_is_judged_on_so_much_of_its_part_and_the_test_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(text_module, "_ENOUGH_TO_SEARCH", 3)
    path = a_text(tmp_path, bytes(range(200)))
    assert on(path, data={"held_out": 0.05}).data.open("cpu").test.tolist() == [180, 181, 182]
    assert len(on(path, data={"held_out": 0.05, "test_bytes": 5}).data.open("cpu").test) == 5
    assert len(on(path).data.open("cpu").test) == 10


def test_a_run_of_so_many_steps_is_tested_ten_times_and_at_its_end(tmp_path: Path):
    config = on(a_text(tmp_path))
    train(config, tmp_path, Options(threads=1))
    assert [row["step"] for row in read_run(tmp_path / config.id).metrics] == [*range(2, 25, 2), 25]
    assert opened(on(a_text(tmp_path), max_steps=3)).num_train == 4


def test_a_run_of_epochs_passes_over_as_many_windows_as_fit(tmp_path: Path):
    config = on(a_text(tmp_path, bytes(range(200))), epochs=2)
    assert opened(config).num_train == 22  # 179 bytes can be told, 8 at a time


def test_a_network_that_gives_every_byte_the_same_chance_has_eight_bits_per_byte(tmp_path: Path):
    config = on(a_text(tmp_path))
    seen = opened(config)
    beginning = begin(config, seen, tmp_path)
    nn.init.zeros_(beginning.model.get_parameter("embedding.weight"))
    loss, _ = evaluate(Training(config, seen, torch.device("cpu"), beginning)).read()
    assert BITS_PER_BYTE.of({"test_loss": loss}) == pytest.approx(8)


def test_bits_per_byte_by_hand(tmp_path: Path):
    """After "a" come "a" and "b" as 3 to 1, and after "b" always "a": the mean over positions, in bits."""
    config = on(a_text(tmp_path, b"z" * 190 + b"aaabaaabaa"), model={"name": "last_byte", "context": 3})
    seen = opened(config)
    beginning = begin(config, seen, tmp_path)
    table = torch.full((256, 256), -100.0)
    table[ord("a"), ord("a")], table[ord("a"), ord("b")], table[ord("b"), ord("a")] = 0.75, 0.25, 1.0
    table = torch.where(table > 0, table, 1e-30).log()
    training = Training(config, seen, torch.device("cpu"), beginning)
    training.model.forward = lambda tokens: table[tokens]  # type: ignore[method-assign]
    loss, right = evaluate(training).read()
    told = [0.75, 0.75, 0.25, 1, 0.75, 0.75, 0.25, 1, 0.75]
    assert BITS_PER_BYTE.of({"test_loss": loss}) == pytest.approx(-sum(map(log2, told)) / 9)
    assert right == pytest.approx(100 * 7 / 9)


def test_a_finished_run_tells_bits_per_byte(tmp_path: Path):
    config = on(a_text(tmp_path), max_steps=200, optimizer={"lr": 1.0})
    train(config, tmp_path, Options(threads=1))
    summary = RunFolder(tmp_path / config.id).summary()
    assert summary is not None
    assert summary["bits_per_byte"] == BITS_PER_BYTE.of({"test_loss": summary["loss"]})
    assert 0 < summary["bits_per_byte"] < 4  # eight to begin with


@pytest.mark.parametrize("step", [1, 7, 24])
def test_a_run_that_was_stopped_ends_with_the_same_bits(step: int, tmp_path: Path):
    config = on(a_text(tmp_path))
    train(config, tmp_path / "whole", Options(threads=1))
    stop_after(step, config, tmp_path / "parts")
    train(config, tmp_path / "parts", Options(threads=1))
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "parts" / config.id)


def test_a_text_is_the_same_from_wherever_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = a_text(tmp_path)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    names = {on(Path(name)).id for name in ("a.txt", "sub/../a.txt", str(path))}
    names.add(make_config({**on(path).settings(), "data": "text:a.txt"}).id)
    assert names == {on(path).id}
    held_out = merge({"data": "text:a.txt"}, nest("data.held_out", 0.05))
    assert make_config({**on(path).settings(), **held_out}).id == on(path, data={"held_out": 0.05}).id


def test_a_text_that_changed_is_another_data_set(tmp_path: Path):
    path = a_text(tmp_path)
    before = on(path)
    stop_after(3, before, tmp_path / "runs")
    a_text(tmp_path, b"or not to be: " * 200)
    assert on(path).id != before.id
    with pytest.raises(ValueError, match="is not what it was"):
        before.data.open("cpu")


def test_runs_on_a_text_that_is_gone_can_be_looked_at(tmp_path: Path):
    path = a_text(tmp_path)
    config = on(path)
    path.unlink()
    assert read_config(config.settings()) == config
    with pytest.raises(ValueError, match="No such file"):
        make_config({**config.settings(), "data": f"text:{path}"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"held_out": 0.1}}, "0.05, the part before its test"),
        ({"data": {"test_bytes": 1}}, "test_bytes must be a whole number >= 2"),
        ({"data": {"tests": 1}}, "no field 'tests'"),
        ({"model": "lenet_300_100"}, "lenet_300_100 does not read text"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        on(a_text(tmp_path), **settings)


def test_a_language_model_reads_no_images():
    with pytest.raises(ValueError, match="last_byte reads text"):
        on(Path(__file__), data="mnist")


def test_a_text_too_short_for_the_context_is_refused(tmp_path: Path):
    config = on(a_text(tmp_path, bytes(range(160))))
    with pytest.raises(ValueError, match=r"8 bytes, too few for a context of 8"):
        train(config, tmp_path, Options(threads=1))


@pytest.mark.skipif(os.environ.get("REGROW_TEST_NETWORK") != "1", reason="set REGROW_TEST_NETWORK=1 to download")
def test_enwik8_arrives_whole(tmp_path: Path):
    text = data.load("enwik8", device="cpu", root=tmp_path)
    assert isinstance(text, data.Text)
    assert (len(text.train), len(text.test)) == (90_000_000, 5_000_000)
