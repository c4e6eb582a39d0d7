"""ONNX files: a model as a graph that other runtimes compute, with its sparse weights written out dense."""

import copy
import logging
import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regrow.core.extras import check_installed
from regrow.core.names import unwrap
from regrow.files.atomic import write_bytes
from regrow.files.export import check_place
from regrow.files.packed import names_of_vectors
from regrow.storage.computed_weights import expanders_of, stop_expanding

_TOLERANCE = 1e-5
_LARGEST = 2**31  # what a file of this kind can hold, in bytes


def export_onnx(
    path: str | os.PathLike[str], model: nn.Module, example_input: Tensor | Sequence[Tensor]
) -> float | None:
    """Write a model, as it is in evaluation, for inputs like the example in batches of any size (the first axis).

    Where onnxruntime is installed the file is tried before it is written, and must give the model's outputs to 1e-5 of
    the largest of them (in half precision, to what that can tell apart). What comes back is the largest difference
    seen; None where nothing could be tried.
    """
    check_packages()
    check_place(path)
    inputs = _inputs_of(example_input)
    plain = _plain_copy(model)
    if sum(tensor.nbytes for tensor in plain.state_dict().values()) >= _LARGEST:
        raise ValueError("the model takes more than 2 GiB, which one ONNX file cannot hold")
    _check_takes(plain, inputs)
    graph = _translate(plain, inputs)
    difference = _largest_difference(graph, plain, inputs) if _can_be_tried(plain, inputs) else None
    write_bytes(Path(path), graph)
    return difference


def check_packages() -> None:
    """Refuse to begin without the packages that the export needs."""
    check_installed("onnx", "exporting to ONNX", "onnx", "onnxscript")


def _inputs_of(example: object) -> tuple[Tensor, ...]:
    inputs = (example,) if isinstance(example, Tensor) else example
    if not isinstance(inputs, (tuple, list)) or not inputs or not all(isinstance(own, Tensor) for own in inputs):
        raise TypeError(
            f"example_input must be a tensor whose first axis is the batch, e.g. torch.randn(1, 784), or a tuple of "
            f"them, got {reprlib.repr(example)}"
        )
    return tuple(own.detach().cpu() for own in inputs)


def _check_takes(plain: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuse an example that the model does not take, alone or twice in a batch; torch would say so at great length."""
    shapes = ", ".join(str(tuple(own.shape)) for own in inputs)
    try:
        _outputs(plain, inputs)
    except Exception as error:
        raise ValueError(f"the model does not take an example_input of shape {shapes}: {error}") from error
    try:
        _outputs(plain, _repeated(inputs, 2))
    except Exception as error:
        raise ValueError(
            f"the model takes an example_input of shape {shapes}, and not two of them along its first axis, which must "
            f"be the batch: {error}"
        ) from error


def _plain_copy(model: nn.Module) -> nn.Module:
    """The model in evaluation mode with an ordinary dense weight in every layer, on the CPU."""
    plain = copy.deepcopy(unwrap(model)).eval()
    vectors = names_of_vectors(plain)
    for module in plain.modules():
        for name in list(expanders_of(module)):
            stop_expanding(module, name, nn.Parameter(getattr(module, name).detach()))
    for name in vectors:
        owner, _, own_name = name.rpartition(".")
        del plain.get_submodule(owner)._parameters[own_name]
    return plain.cpu()


def _translate(plain: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    batch = torch.export.Dim("batch")
    names = [f"output_{i}" for i in range(len(_outputs(plain, inputs)))]
    try:
        with _quietly():
            program = torch.onnx.export(
                plain,
                _repeated(inputs, 2),  # the tracer would take a batch of one for a constant
                dynamo=True,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                output_names=names if len(names) > 1 else ["output"],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ValueError(f"torch cannot write this model as ONNX: {error}") from error
    assert program is not None
    proto = program.model_proto
    # Where a model fixes its batch, torch falls back to the size it saw and says so only in its log.
    if not all(one.type.tensor_type.shape.dim[0].dim_param for one in proto.graph.input):
        raise ValueError("the model cannot take batches of any size: some operation in it depends on the size it sees")
    graph: bytes = proto.SerializeToString()
    return graph


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch has to say about its own insides and about packages that are not there."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _can_be_tried(plain: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Whether there is a runtime, and all tensors can travel to it: numpy, by which they go, has no bfloat16."""
    tensors = [*inputs, *_outputs(plain, inputs)]
    return find_spec("onnxruntime") is not None and all(tensor.dtype != torch.bfloat16 for tensor in tensors)


def _largest_difference(graph: bytes, plain: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Between the outputs of the graph and of the model, for the example and for three times as many."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    largest = 0.0
    for given in (inputs, _repeated(inputs, 3)):
        feed = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
        for got, expected in zip(session.run(None, feed), _outputs(plain, given), strict=True):
            largest = max(largest, _difference(torch.from_numpy(got), expected))
    return largest


def _difference(got: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    coarseness = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
    difference = float((got.double() - expected.double()).abs().max())
    if not difference <= max(_TOLERANCE, 4 * coarseness) * max(1.0, float(expected.double().abs().max())):
        raise ValueError(
            f"the outputs of the ONNX graph differ by {difference:.1e} from the model's, so nothing was written; does "
            "the model give the same outputs at every call?"
        )
    return difference


@torch.no_grad()
def _outputs(plain: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return list(_tensors_in(plain(*inputs)))


def _tensors_in(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors_in(value)
    elif isinstance(output, Sequence):
        for value in output:
            yield from _tensors_in(value)


def _repeated(inputs: tuple[Tensor, ...], times: int) -> tuple[Tensor, ...]:
    return tuple(torch.cat([tensor] * times) for tensor in inputs)
