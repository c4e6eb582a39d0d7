"""What is not installed is named with the line that installs it, and nothing was changed by then."""

import subprocess
import sys

import pytest

from regrow.core.extras import check_installed

WITHOUT_EXTRAS = """
import sys

for name in ("numba", "llvmlite", "typer", "rich", "matplotlib", "jinja2", "PIL", "onnx", "onnxscript", "triton"):
    sys.modules[name] = None

import torch
from torch import nn

import regrow

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
before = {name: own.clone() for name, own in model.state_dict().items()}


def refusal(action):
    try:
        action()
    except (ImportError, ValueError, SystemExit) as error:
        print(error)
    else:
        raise AssertionError("that needs what is not installed")


def command_line():
    from regrow.__main__ import main

    main()


def report():
    import regrow.lab.report


refusal(lambda: regrow.attach(model, optimizer, regrow.SET(sparsity=0.5), storage="packed"))
refusal(lambda: regrow.export_onnx("model.onnx", model, torch.zeros(1, 8)))
refusal(command_line)
refusal(report)

assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
sparse = regrow.attach(model, optimizer, regrow.SET(sparsity=0.5, period=2))
for _ in range(4):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
regrow.save("model.safetensors", model, sparse)
regrow.load("model.safetensors", nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
assert sparse.active == sparse.budget == 96
"""


def test_dense_training_saving_and_loading_need_no_extra_and_others_name_theirs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'packed storage on a CPU needs numba and llvmlite, which are not installed; run pip install "regrow[packed]"',
        'exporting to ONNX needs onnx and onnxscript, which are not installed; run pip install "regrow[onnx]"',
        'error: the command line needs typer and rich, which are not installed; run pip install "regrow[lab]"',
        'a report needs matplotlib and jinja2, which are not installed; run pip install "regrow[lab]"',
    ]


@pytest.mark.parametrize("kind", [ImportError, ValueError])
def test_a_missing_package_is_both_an_import_error_and_a_refusal(kind):
    check_installed("dev", "this test", "pytest", "torch")
    with pytest.raises(kind, match=r'^this test needs nothing_such, which is not .*; run pip install "regrow\[dev\]"$'):
        check_installed("dev", "this test", "pytest", "nothing_such")
