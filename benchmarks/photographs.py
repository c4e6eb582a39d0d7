"""How fast photographs come, and how long a training waits for them: ResNet-50 as in the paper, from files on disk.

    python -m benchmarks.photographs ARCHIVE [--device cpu|cuda] [--batch 256] [--seconds 4] [--no-compile] [--quick]

ARCHIVE is a tar of photographs in folders, which are repeated until there are enough of them. They are decoded as they
are and from a copy made by `regrow data prepare`: by threads, by processes, and by the GPU where torchvision can. The
share that a training waits is what its steps take longer with photographs than with one batch that is there already.
"""

import argparse
import os
import tarfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from benchmarks.measure import table
from regrow.lab.config import make_config
from regrow.lab.data import ImageFolder, open_folder
from regrow.lab.data.decoding import cores_for_each
from regrow.lab.data.pictures import random_box
from regrow.lab.data.prepare import prepare
from regrow.lab.run.start import begin
from regrow.lab.run.state import Training
from regrow.lab.run.steps import EagerSteps

SIZE = 224


def unpack(archive: Path, home: Path) -> None:
    """The photographs of an archive, to train on and to test on."""
    with tarfile.open(archive) as packed:
        packed.extractall(home / "train", filter="data")
    (home / "val").symlink_to(home / "train")


def repeated(folder: ImageFolder, count: int) -> ImageFolder:
    times = -(-count // folder.num_train)
    return replace(folder, train_files=folder.train_files * times, train_labels=folder.train_labels * times)


def rate(batches: Iterator[object], batch: int, seconds: float, device: torch.device) -> float:
    """Photographs per second, once the first batches are there."""
    for _ in range(4):
        next(batches)
    wait_for(device)
    start, count = perf_counter(), 0
    while perf_counter() - start < seconds and next(batches, None) is not None:
        count += batch
    wait_for(device)
    return count / (perf_counter() - start)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def on_gpu(folder: ImageFolder, batch: int) -> Iterator[torch.Tensor]:
    """Decoded, cut and stretched by the GPU; only the bytes are read here."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    random = Random(0)
    for first in range(0, folder.num_train - batch, batch):
        content = [read_file(str(path)) for path in folder.train_files[first : first + batch]]
        pictures = decode_jpeg(content, mode=ImageReadMode.RGB, device="cuda")
        cuts = []
        for picture in pictures:
            left, top, right, bottom = random_box(picture.shape[2], picture.shape[1], random)
            cut = picture[None, :, top:bottom, left:right].half()
            cuts.append(torch.nn.functional.interpolate(cut, (SIZE, SIZE), mode="bilinear", antialias=True))
        yield torch.cat(cuts)


def input_alone(name: str, folder: ImageFolder, batch: int, seconds: float, device: torch.device) -> list[list[str]]:
    threads = replace(folder, num_processes=0)
    processes = replace(folder, num_processes=cores_for_each())
    cores = str(cores_for_each())
    ways: dict[str, Callable[[], Iterator[object]]] = {
        "8 threads": lambda: threads.training_batches(0, 0, batch, device=device),
        f"{cores} threads": lambda: threads.training_batches(0, 0, batch, device=device, num_workers=int(cores)),
        f"{cores} processes": lambda: processes.training_batches(0, 0, batch, device=device),
    }
    if device.type == "cuda":
        ways["nvJPEG"] = lambda: on_gpu(folder, batch)
    rows = []
    for way, begun in ways.items():
        try:
            told = f"{rate(begun(), batch, seconds, device):,.0f}"
        except (ImportError, OSError, RuntimeError) as error:  # torchvision is not there, or cannot
            told = str(error).partition("\n")[0]
        rows.append([name, way, told])
        print(table(rows[-1:]), flush=True)
    return rows


def training_with(
    home: Path, folder: ImageFolder, batch: int, width: float, device: torch.device, is_compiled: bool
) -> Training:
    precision = "bfloat16" if device.type == "cuda" else "float32"
    method = {"name": "DSR", "sparsity": 0.9, "prune": 200_000 if width == 1 else 100}
    told = {"model": "resnet_50", "data": f"folder:{home}", "width": width, "batch_size": batch}
    config = make_config({**told, "precision": precision, "method": method})
    torch.backends.cudnn.deterministic = True  # as runs of the lab are
    return Training(config, folder, device, begin(config, folder, home), is_compiled)


def steps_with_and_without(training: Training, seconds: float) -> tuple[float, float, float]:
    """Milliseconds of a step on one batch, of one on photographs, and of these what the program waits for a batch."""
    steps, device = EagerSteps(training), training.device
    steps.begin_epoch(0)
    inputs, targets = next(steps._batches)
    for _ in range(5):
        training.update(inputs, targets)
    fixed = _milliseconds(lambda: training.update(inputs, targets), seconds, device)
    for _ in range(5):
        steps.step()
    waited, batches = 0.0, steps._batches

    def timed() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        nonlocal waited
        while True:
            start = perf_counter()
            batch = next(batches)
            waited += perf_counter() - start
            yield batch

    steps._batches, begun = timed(), training.step
    real = _milliseconds(steps.step, seconds, device)
    return fixed, real, 1000 * waited / (training.step - begun)


def _milliseconds(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    wait_for(device)
    start, count = perf_counter(), 0
    while perf_counter() - start < seconds:
        work()
        count += 1
    wait_for(device)
    return 1000 * (perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small and few pictures, to see that it works")
    parser.add_argument("--input-alone", action="store_true", help="no training")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(arguments.device)
    batch, seconds, size = (4, 0.5, 32) if arguments.quick else (arguments.batch, arguments.seconds, SIZE)
    is_compiled = device.type == "cuda" and not arguments.no_compile
    began = perf_counter()
    with TemporaryDirectory() as scratch:
        original, small = Path(scratch) / "original", Path(scratch) / "prepared"
        unpack(arguments.archive, original)
        start = perf_counter()
        count = prepare(original, small)
        print(f"{os.cpu_count()} cores; {count} photographs prepared in {perf_counter() - start:.1f} s", flush=True)
        homes = {"as they are": original, "prepared": small}
        folders = {
            name: repeated(open_folder(home, image_size=size, device=device), (60 if arguments.quick else 400) * batch)
            for name, home in homes.items()
        }
        rows = [["photographs", "decoded by", "per second"]]
        for name, folder in folders.items():
            rows += input_alone(name, folder, batch, seconds, device)
        print(table(rows))
        rows = [["photographs", "on one batch", "with input", "longer by", "per second", "host waits"]]
        training = None
        for name, folder in {} if arguments.input_alone else folders.items():
            folder = replace(folder, num_processes=folder.num_processes or 1)
            if training is None:
                width = 0.125 if arguments.quick else 1.0
                training = training_with(homes[name], folder, batch, width, device, is_compiled)
            training.data = folder
            fixed, real, waited = steps_with_and_without(training, seconds)
            share, per_second = 1 - fixed / real, 1000 * batch / real
            told = [f"{fixed:.1f} ms", f"{real:.1f} ms", f"{share:.1%}", f"{per_second:,.0f}", f"{waited:.1f} ms"]
            rows.append([name, *told])
            print(table(rows), flush=True)
    print(f"all of it took {perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
