"""Two processes, each in a network namespace of its own, and between them the only link there is, limited at will.

The namespaces have no names: each belongs to its process, and that ends with its parent, however the parent ends. Then
the kernel takes namespaces and link away. No other interface is touched, and nothing sent can leave the two.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from time import monotonic

ENDS = ("regrow0", "regrow1")
ADDRESSES = ("198.18.0.1", "198.18.0.2")  # of the range that is kept for benchmarks of networks
_LIBC = ctypes.CDLL(None, use_errno=True)
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@contextmanager
def linked(command: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a command twice, with a 0 and a 1 at its end; each has to call `join`. Whatever happens, both are ended."""
    _check_is_possible()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in ("0", "1"):
            own = subprocess.Popen([*command, rank], stdin=subprocess.PIPE, preexec_fn=_go_apart)
            processes.append(own)
        one, other = (str(process.pid) for process in processes)
        _call("ip", "link", "add", ENDS[0], "netns", one, "type", "veth", "peer", "name", ENDS[1], "netns", other)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # which `join` waits for
        yield processes
    except subprocess.SubprocessError as error:
        raise SystemExit(f"no linked namespaces can be made here; run this where root may do so ({error})") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Let both come to their end, in that time at most."""
    deadline = monotonic() + seconds
    for process in processes:
        try:
            if process.wait(deadline - monotonic()) != 0:
                raise SystemExit("a rank failed, as is told above")
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"the ranks took longer than {seconds:.0f} s and were ended; allow more, or do less"
            ) from None


def join(rank: int) -> None:
    """In one of the two: take this end of the link once it is there."""
    sys.stdin.read()
    _call("ip", "link", "set", "lo", "up")
    _call("ip", "address", "add", f"{ADDRESSES[rank]}/30", "dev", ENDS[rank])
    _call("ip", "link", "set", ENDS[rank], "up")


def limit(rank: int, megabits: int) -> None:
    """Let this end send so many megabits a second at most; 0 for no limit."""
    burst = max(2, megabits // 8)  # what a millisecond lets through: no pause saves up more
    bucket = ["tbf", "rate", f"{megabits}mbit", "burst", f"{burst}kb", "latency", "50ms"]
    _call("tc", "qdisc", "replace", "dev", ENDS[rank], "root", *(bucket if megabits else ["pfifo"]))


def sent_bytes(rank: int) -> int:
    """What this end has sent so far, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == ENDS[rank]:
            return int(counts.split()[8])
    raise RuntimeError(f"no {ENDS[rank]} in /proc/net/dev")


def _check_is_possible() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SystemExit("network namespaces are made by root on Linux only; run this there, as root")
    if not (which("ip") and which("tc")):
        raise SystemExit("ip and tc are missing: apt-get install iproute2")


def _go_apart() -> None:
    """Between fork and exec: leave the network of the parent, but not its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends both
    _LIBC.prctl(_END_WITH_PARENT, signal.SIGKILL)
    if _LIBC.unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _call(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr.strip()}")
