"""The commands about files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regrow.lab.cli.terminal import err, explained, out

if TYPE_CHECKING:  # torch is slow to import, and --help should not be
    from regrow.files.save import Description

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help="`dense`: plain safetensors. `state_dict`: for torch.load. `csr`: that, sparse weights as CSR matrices. "
        "`sparse`: the small file of regrow.save. `onnx`: the network (of a run). By default what OUT ends with: "
        ".safetensors is dense, .pt is state_dict, .onnx is onnx.",
    ),
]


@explained
def export(
    source: Annotated[Path, typer.Argument(help="A file written by regrow.save, or the folder of a run.")],
    out_file: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    format_: Format = None,
) -> None:
    """Write a trained network for other programs: dense or sparse, as safetensors, for torch, or as ONNX.

    Example: `regrow export model.safetensors model.pt --format csr`

    Example: `regrow export runs/lenet_300_100-mnist-dsr-0.99-seed0-90f0e65b lenet.onnx`
    """
    import regrow
    from regrow.files.export import choose_format
    from regrow.lab.exporting import export_run

    format_ = choose_format(out_file, format_)
    if not source.exists():
        raise ValueError(f"there is no {source}; give a file written by regrow.save, or the folder of a run")
    difference = None
    with err.status(f"writing {format_}"):
        if source.is_dir():
            difference = export_run(source, out_file, format_)
        else:
            regrow.export(source, out_file, format_)
    err.print(f"{format_}, {out_file.stat().st_size:,} bytes")
    if difference is not None:
        err.print(f"onnxruntime gives the outputs of the network: the largest difference is {difference:.1e}")
    elif format_ == "onnx":
        err.print("not tried: onnxruntime is not installed")
    out.print(str(out_file), soft_wrap=True, markup=False)


@explained
def describe(file: Annotated[Path, typer.Argument(help="A file written by regrow.save.")]) -> None:
    """Tell what is in a small file, and how its length compares with the description length.

    Example: `regrow describe model.safetensors`
    """
    import regrow

    if file.is_dir():
        raise ValueError(f"{file} is a folder; `regrow show {file}` shows a run")
    told = regrow.describe(file)
    out.print(str(told), soft_wrap=True, markup=False)
    out.print(_compare(told), soft_wrap=True, markup=False)


def _compare(told: "Description") -> str:
    ratio = told.num_bytes / told.description_length if told.description_length else 1.0
    return (
        f"description length: {told.description_length:,} bytes, which is 32 bits for each of {told.num_parameters:,} "
        f"numbers and 1 bit for each of {told.num_positions:,} positions\n"
        f"the file is {ratio:.4f} times as long; {told.num_header_bytes:,} of its bytes are names and shapes, and "
        f"{told.num_position_bytes:,} are positions, whose entropy is {told.entropy_of_positions:,.0f}"
    )
