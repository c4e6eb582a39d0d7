"""One run in the terminal."""

import io
import re
from pathlib import Path

from example_runs import write_run
from rich.console import Console
from text_runs import a_text, on

from regrow.lab.report.show import bar, show_config, show_run, sparkline
from regrow.lab.run.folder import read_run


def shown(path: Path, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(show_run(read_run(path)))
    return console.export_text()


def test_a_run_is_shown_with_settings_result_and_layers(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 97.31, method="DSR", sparsity=0.9, epochs=4, seconds=75))
    assert "DSR, LeNet-300-100 on MNIST" in text
    assert "method.prune" in text
    assert "97.31 %" in text
    assert "4 epochs in 1 min 15 s" in text
    assert "27,440" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("fc")}
    assert list(lines) == ["fc1", "fc2", "fc3"]
    assert "300x784  11,760    0.9500" in lines["fc1"]
    assert bar(0.95) in lines["fc1"]


def test_the_sparkline_shows_how_a_sparsity_emerged(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 97.31, method="DSR", sparsity=0.99, epochs=4))
    (fc3,) = (line for line in text.splitlines() if line.startswith("fc3"))
    assert fc3.rstrip().endswith("█▆▄▃▁")


def test_a_static_run_has_no_way_to_show(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 97.31, method="Static", sparsity=0.99, epochs=4))
    assert "emerging" not in text


def test_a_large_network_fits_80_columns(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 93.5, model="wrn_28_2", method="DSR", sparsity=0.9, epochs=40))
    assert "…" not in text
    assert "groups.2.3.conv2  128x128x3x3" in text


def test_what_departs_from_the_paper_is_marked(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 97.0, method={"name": "DSR", "prune": 300}, sparsity=0.9, epochs=4))
    marked = [line.split()[0] for line in text.splitlines() if "not the paper's" in line]
    assert marked == ["method.prune", "epochs"]
    as_published = {line.split()[0] for line in text.splitlines() if line.rstrip().endswith("  the paper's")}
    assert as_published >= {"data", "method.period", "method.until", "method.l1", "optimizer.lr", "optimizer.momentum"}
    assert not as_published & {"seed", "method.sparsity", "method.tolerance"}


def test_settings_that_nobody_said_are_shown_where_they_have_an_effect(tmp_path: Path) -> None:
    text = shown(write_run(tmp_path, 97.0, method="RigL", sparsity=0.9, epochs=4))
    for line in ("method.distribution *erk", "method.fraction *0.3", "method.period *100", "clip *none"):
        assert re.search(line, text)
    assert "method.period" not in shown(write_run(tmp_path, 97.0, method="Static", sparsity=0.9, epochs=4))


def test_of_other_networks_the_defaults_stand_for_the_paper(tmp_path: Path) -> None:
    run = on(a_text(tmp_path), learning_rate={"name": "cosine", "peak": 0.1, "warmup": 3}, optimizer={"momentum": 0.8})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(show_config(run))
    text = console.export_text()
    assert "paper" not in text
    assert re.search("optimizer.momentum *0.8 *not the default", text)
    assert re.search("learning_rate.peak *0.1", text)


def test_a_dense_run_has_no_layers(tmp_path: Path) -> None:
    assert "sparsity  " not in shown(write_run(tmp_path, 98.5, method="Dense", epochs=2))


def test_an_unfinished_run_says_how_far_it_came(tmp_path: Path) -> None:
    assert "Not finished: 4 of 4 epochs." in shown(
        write_run(tmp_path, 97.0, method="DSR", sparsity=0.9, epochs=4, finished=False)
    )


def test_bars_and_lines() -> None:
    assert [bar(share, width=2) for share in (0, 0.5, 1, 2)] == ["  ", "█ ", "██", "██"]
    assert sparkline([1, 1, 1], 1, 1) == "▁▁▁"
    assert len(sparkline(list(range(1000)), 0, 999)) == 18
