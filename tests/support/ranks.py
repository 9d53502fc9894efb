"""Start processes that train together as torchrun does. Their store is in this process."""

import os
import re
import subprocess
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.support.processes import HANG

# the store of each rank lives as long as the rank
_STORES: WeakKeyDictionary["subprocess.Popen[str]", TCPStore] = WeakKeyDictionary()


def start(
    ranks: int, *arguments: str, timeout: int = HANG, folder: Path | None = None
) -> list["subprocess.Popen[str]"]:
    """Start `python -m ARGUMENTS` with this number of ranks, in the given or the current folder."""
    # the store listens at once, so no other process can take the port before the ranks start
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    shared |= {"LIGHTCAKE_FAST_TIMEOUT": str(timeout)}
    processes = [
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
    _STORES.update(dict.fromkeys(processes, store))
    return processes


def finish(processes: list["subprocess.Popen[str]"], *codes: int) -> list[tuple[str, str]]:
    """Return the stdout and stderr of each process, and check its exit code (default 0)."""
    try:
        ended = [process.communicate(timeout=HANG) for process in processes]
    finally:
        for process in processes:
            process.kill()  # no effect on a process that has ended
    # PyTorch 2.9 prints the connected ranks on stdout
    outputs = [(re.sub(r"^\[Gloo\] .*\n", "", out, flags=re.MULTILINE), err) for out, err in ended]
    wanted = list(codes) or [0] * len(processes)
    assert [process.returncode for process in processes] == wanted, outputs
    return outputs
