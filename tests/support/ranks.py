"""Processes that train together, started as torchrun starts them, but without its own process beside them."""

import os
import re
import socket
import subprocess
import sys


def start(ranks: int, *arguments: str, timeout: int = 120) -> list["subprocess.Popen[str]"]:
    """Start `python -m ARGUMENTS` as that many ranks on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    shared |= {"LIGHTCAKE_FAST_TIMEOUT": str(timeout)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]


def finish(processes: list["subprocess.Popen[str]"], *codes: int) -> list[tuple[str, str]]:
    """What each printed, to stdout and to stderr, after it ended with its code (0 where none is given)."""
    ended = [process.communicate(timeout=300) for process in processes]
    # which ranks PyTorch 2.9 has joined it says itself, on stdout
    outputs = [(re.sub(r"^\[Gloo\] .*\n", "", out, flags=re.MULTILINE), err) for out, err in ended]
    wanted = list(codes) or [0] * len(processes)
    assert [process.returncode for process in processes] == wanted, outputs
    return outputs
