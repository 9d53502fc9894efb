"""Processes that train together, started as torchrun starts them, but without its own process beside them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

_STORES: list[Any] = []  # as torchrun's agent has one: it lives longer than any process


def start(
    ranks: int, *arguments: str, timeout: int = 120, folder: Path | None = None
) -> list["subprocess.Popen[str]"]:
    """Start `python -m ARGUMENTS` as that many ranks on this machine, in a folder or the current one."""
    tcp: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = tcp("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    shared |= {"LIGHTCAKE_FAST_TIMEOUT": str(timeout)}
    return [
        subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
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
