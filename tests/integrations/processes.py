"""Trainings in processes of their own, and whether two came out the same."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("resumed.py")


def run(trainers: str, stage: str, folder: Path) -> None:
    """`resumed.py` in a fresh process."""
    subprocess.run([sys.executable, PROGRAM, trainers, stage, folder], check=True, timeout=600)


def run_two_ranks(trainers: str, stage: str, folder: Path) -> None:
    """The same in two, each of which is told its rank as torchrun does it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    usual |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, trainers, stage, folder],
            env={**os.environ, **usual, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=600) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def differences(one: object, other: object, name: str = "") -> list[str]:
    """Where two results differ in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if isinstance(other, torch.Tensor) and torch.equal(one, other) else [name]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], f"{name}/{key}")]
    if isinstance(one, (list, tuple)) and isinstance(other, type(one)) and len(one) == len(other):
        return [found for i, own in enumerate(one) for found in differences(own, other[i], f"{name}/{i}")]
    return [] if one == other else [name]
