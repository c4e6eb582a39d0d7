"""The examples run, and show what they say they show."""

import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(monkeypatch, capsys, name: str, *arguments: str) -> tuple[dict[str, object], str]:
    """What an example leaves behind, and what it prints."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name)), capsys.readouterr().out


def test_a_network_of_which_only_the_active_weights_exist_learns_and_rewires(monkeypatch, capsys):
    arguments = ("--quick", "--width", "1000", "--steps", "80")
    space, printed = run(monkeypatch, capsys, "bigger_than_memory.py", *arguments)
    # 784 x 1000 + 1000 x 1000 + 1000 x 10 = 1,794,000 positions, of which 2 % are 35,880
    assert "35,880 weights in 1,794,000 positions, 2 rewirings" in printed
    assert "weights, gradients and momentum, dense: 0.02 GB" in printed
    assert [len(parameter) for parameter in space["model"].parameters()] == [35_880, 1000, 1000, 1000, 1000, 10, 10]
    assert sum(space["sparse"].history[0].grown.values()) > 100
    assert space["accuracy"](1000) > 0.6  # by chance 0.1
