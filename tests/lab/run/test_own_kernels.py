"""The graphs that torch compiles, rewritten to use our kernels; on a CPU what replaces cuDNN is torch's own."""

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch._inductor.decomposition import select_decomp_table

from regrow.lab.run import compile as compiling
from regrow.lab.run.conv_pass import OwnWeightGradients

Ours = torch.ops.regrow.weight_gradient.default
Theirs = torch.ops.aten.convolution_backward.default


def backward_graphs(net: nn.Module, images: Tensor, *, rewrites: bool) -> tuple[list[fx.Node], list[Tensor]]:
    """The nodes of the backward pass, as torch would go on to compile it, and the gradients it gives."""
    nodes: list[fx.Node] = []

    def keep(module: fx.GraphModule, inputs: list[Tensor]) -> object:
        return make_boxed_func(module.forward)

    def rewrite(module: fx.GraphModule, inputs: list[Tensor]) -> object:
        if rewrites:
            OwnWeightGradients()(module.graph)
            module.graph.lint()
            module.recompile()
        nodes.extend(module.graph.nodes)
        return make_boxed_func(module.forward)

    names, values = zip(*net.named_parameters(), strict=True)

    def work(images: Tensor, *values: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(net, dict(zip(names, values, strict=True)), (images,))
        return made

    table = select_decomp_table()
    made = aot_function(work, fw_compiler=keep, bw_compiler=rewrite, decompositions=table)(images, *values)
    return nodes, list(torch.autograd.grad(made, values, made.detach().sin()))


def network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).to(torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]


def pictures(size: int = 8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(4, 3, size, size).to(dtype).contiguous(memory_format=torch.channels_last)


def convolution(num_in: int, num_out: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, size, padding=size // 2, bias=False, **options)


def test_weight_gradients_are_split_off_and_stay_what_they_were():
    torch.manual_seed(0)
    net = network(convolution(3, 16), nn.ReLU(), convolution(16, 32), nn.ReLU(), convolution(32, 64, 1, stride=2))
    images = pictures()
    nodes, ours = backward_graphs(net, images, rewrites=True)
    _, theirs = backward_graphs(net, images, rewrites=False)
    assert [node.args[2:] for node in nodes if node.target == Ours] == [(1, 2), (3, 1), (3, 1)]
    assert [node.args[-1] for node in nodes if node.target == Theirs] == [[True, False, False]] * 2
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_first_layer_needs_no_other_gradient():
    nodes, _ = backward_graphs(network(convolution(3, 16)), pictures(), rewrites=True)
    assert not [node for node in nodes if node.target == Theirs]


@pytest.mark.parametrize(
    "layer",
    [
        convolution(3, 256),
        convolution(3, 24),
        convolution(3, 16, 5),
        nn.Conv2d(3, 16, 3, bias=False),  # not padded
        nn.Conv2d(3, 16, 3, padding=1),  # with a bias
        nn.Conv2d(3, 16, 3, padding=1, dilation=2, bias=False),
        nn.Conv2d(3, 16, 3, padding=1, stride=3, bias=False),
    ],
    ids=str,
)
def test_what_our_kernel_was_not_made_for_is_left_to_cudnn(layer: nn.Module):
    nodes, _ = backward_graphs(network(layer), pictures(), rewrites=True)
    assert not [node for node in nodes if node.target == Ours]


@pytest.mark.parametrize(
    "second",
    [
        nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False),
        nn.ConvTranspose2d(32, 32, 3, padding=1, bias=False),
    ],
    ids=str,
)
def test_so_are_groups_of_channels_and_transposed_convolutions(second: nn.Module):
    nodes, _ = backward_graphs(network(convolution(3, 32), second), pictures(), rewrites=True)
    assert len([node for node in nodes if node.target == Ours]) == 1


def test_so_are_32_bits():
    nodes, _ = backward_graphs(nn.Sequential(convolution(3, 16)), pictures(dtype=torch.float32), rewrites=True)
    assert not [node for node in nodes if node.target == Ours]


def test_so_are_images_with_the_channels_outermost():
    net = nn.Sequential(convolution(3, 16)).to(torch.bfloat16)
    nodes, _ = backward_graphs(net, pictures().contiguous(), rewrites=True)
    assert not [node for node in nodes if node.target == Ours]


class Rounded(nn.Module):
    """Computes with the signs of its weights, whose gradient is zero whatever it is multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 3, 3))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(images, self.weight.sign(), padding=1)


def test_a_gradient_that_nobody_wants_is_not_computed():
    nodes, (_, zero) = backward_graphs(network(convolution(3, 16), Rounded()), pictures(), rewrites=True)
    assert len([node for node in nodes if node.target == Ours]) == 1
    assert not zero.any()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # by torch's own compiler
def test_networks_of_one_shape_are_compiled_once(monkeypatch: pytest.MonkeyPatch):
    """Compiling again for every run takes time, and torch gives up after so many."""

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = torch.tensor(by)

        def __call__(self, images: Tensor) -> Tensor:
            return images * self.by

    monkeypatch.setattr(compiling, "has_own_kernels", lambda: True)
    torch._dynamo.reset()
    counters.clear()
    for by in (1.0, 2.0, 3.0):
        assert compiling.compiled(Scale(by).__call__)(torch.ones(3)).tolist() == [by] * 3
    assert counters["stats"]["unique_graphs"] == 1
