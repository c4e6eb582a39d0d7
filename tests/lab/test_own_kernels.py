"""The graphs that torch compiles, rewritten to use our kernels; on a CPU what replaces cuDNN is torch's own."""

import torch
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor, fx, nn

from regrow.lab.own_kernels import OwnWeightGradients

Ours = torch.ops.regrow.weight_gradient.default


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

    made = aot_function(work, fw_compiler=keep, bw_compiler=rewrite)(images, *values)
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
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_first_layer_needs_no_other_gradient():
    nodes, _ = backward_graphs(network(convolution(3, 16)), pictures(), rewrites=True)
    assert not [node for node in nodes if node.target == torch.ops.aten.convolution_backward.default]


def test_what_was_not_measured_to_be_faster_is_left_to_cudnn():
    left = [
        network(convolution(3, 256)),
        network(convolution(3, 16, 5)),
        network(nn.Conv2d(3, 16, 3)),  # not padded, and with a bias
        network(convolution(3, 24)),
        nn.Sequential(convolution(3, 16)),  # 32 bits
    ]
    for net in left:
        images = pictures(dtype=next(net.parameters()).dtype)
        nodes, _ = backward_graphs(net, images, rewrites=True)
        assert not [node for node in nodes if node.target == Ours]
