"""Graphs for other programs have no room for packed layers, and say what to do instead."""

import importlib.util
import warnings

import pytest
import torch
from torch import nn

import regrow
from regrow.storage.packed import linear_norm

INSTEAD = r"packed layers cannot be traced.*call detach\(\) on the sparsifier first"
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")), reason="needs regrow[onnx]"
)


class AsOne(nn.Module):
    """A layer and its norm in one step."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)

    def forward(self, x):
        return linear_norm(self.fc, self.norm, x)


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), (2, 6)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "attention": (lambda: Attention(6, 2), (4, 2, 6)),
    "block": (AsOne, (4, 6)),
}


def packed(name):
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make()
    sparse = regrow.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Static(sparsity=0.5), storage="packed"
    )
    return model, sparse, torch.randn(shape)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("is_learning", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_trace_would_keep_the_numbers_of_one_input(name, is_learning):
    model, sparse, x = packed(name)
    with torch.set_grad_enabled(is_learning), pytest.raises(ValueError, match=INSTEAD):
        torch.jit.trace(model, x)
    sparse.detach()
    model.eval()
    torch.testing.assert_close(torch.jit.trace(model, x)(2 * x), model(2 * x))


@pytest.mark.parametrize("name", NETWORKS)
def test_scripts(name):
    model, *_ = packed(name)
    with pytest.raises(ValueError, match=INSTEAD):
        torch.jit.script(nn.Sequential(nn.Identity(), model))


@pytest.mark.skipif(not hasattr(torch.compiler, "_is_exporting_flag"), reason="torch < 2.7 does not tell")
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "block"])
def test_exported_programs(name):
    model, _, x = packed(name)
    with pytest.raises(ValueError, match=INSTEAD):
        torch.export.export(model.eval(), (x,), strict=False)
    with torch.no_grad():  # it is as it was
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_symbolic_traces():
    model, *_ = packed("linear")
    with pytest.raises(ValueError, match=INSTEAD):
        torch.fx.symbolic_trace(model)


@needs_onnx
def test_onnx_by_torch_itself(tmp_path):
    model, _, x = packed("linear")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=INSTEAD):
            torch.onnx.export(model, (x,), str(tmp_path / "m.onnx"), dynamo=False)
        with pytest.raises(torch.onnx.OnnxExporterError, match=INSTEAD):
            torch.onnx.export(model, (x,), str(tmp_path / "m.onnx"), dynamo=True, verbose=False)


def test_hashed_layers_can_be_traced_but_not_scripted():
    model = nn.Linear(6, 5)
    regrow.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), regrow.Hashed(sparsity=0.5))
    with pytest.raises(ValueError, match="hashed layers cannot be traced"):
        torch.jit.script(model)
