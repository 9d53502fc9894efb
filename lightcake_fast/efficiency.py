"""What a model costs: its training steps to time, and their peak memory in a child process."""

import ctypes
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.cli import run
from lightcake_fast.data import load_dataset
from lightcake_fast.graph import ContextGraph
from lightcake_fast.metrics import Evaluation, KnownRelations, evaluate_relations
from lightcake_fast.training.model import build_model
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.runtime import epoch_order, resolve_device
from lightcake_fast.training.step import TrainingStep

Computation = Callable[[], Iterable[Tensor] | None]


class Training:
    """A model in training, without a run folder.

    Args:
        flags: Those of `python -m lightcake_fast.train` by name.

    Attributes:
        config: The configuration that the flags give.
        graph: The data set.
        model: The model, on the configuration's device.
        parameters: Numbers that it learns.
    """

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self.config = resolve(flags)
        self.graph = load_dataset(self.config.dataset, self.config.data_dir)
        self._device = resolve_device(self.config.device)
        generator = torch.Generator(self._device).manual_seed(self.config.seed)
        sizes = self.graph.num_entities, self.graph.num_relations
        self.model = build_model(self.config, *sizes, generator)
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        triples = torch.from_numpy(self.graph.train).to(self._device)
        self._context = ContextGraph.from_triples(triples, *sizes)
        self._step = TrainingStep(self.model, self._context, triples, self.config, generator)
        order = epoch_order(self.config.seed, 0, len(triples)).to(self._device)
        self._batches = torch.split(order, self.config.batch_size)
        self._next = cycle(self._batches)
        self._known = KnownRelations.of(self.graph)
        self._seen = torch.from_numpy(self.graph.seen_entities).to(self._device)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of all triples stepped on so far."""
        return self._step.loss_sum.item()

    def step(self) -> None:
        """One step on the next batch."""
        self.model.train()
        self._step(next(self._next))

    def epoch(self) -> None:
        """A step on every batch."""
        self.model.train()
        for batch in self._batches:
            self._step(batch)

    def evaluate(self, split: str = "test") -> Evaluation:
        """Rank the relations of a split."""
        self.model.eval()
        with torch.no_grad():
            refined = self.model.refine(self._context, backend=self.config.backend)
            return evaluate_relations(
                lambda pairs: self.model.relation_scores(refined, pairs.to(self._device), seen=self._seen),
                self.graph.split(split),
                self._known,
                self.graph.seen_entities,
                ties=self.config.ties,
            )


def training_step(flags: Mapping[str, Any]) -> Computation:
    """A later step of a `Training`, for `peak_in_child`: the first makes Adam's averages."""
    training = Training(flags)
    training.step()
    return training.step


def peak_in_child(builder: str, *arguments: Any) -> int | None:
    """Peak memory of a computation on the CPU in a process of its own, in bytes.

    Args:
        builder: "module:function"; called with the arguments, it gives the computation, ready: compilers and
            libraries have their memory by then.
        arguments: Plain values.

    Returns:
        What was held at most beyond what was there before and beyond the tensors that the computation gives;
        None where the system does not tell.

    Raises:
        RuntimeError: The child failed.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", __name__, builder, json.dumps(arguments)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise RuntimeError(f"measuring {builder} {json.dumps(arguments)}: {lines[-1]}")
    return int(child.stdout.split()[-1])


def peak_of_call(computation: Computation, device: torch.device) -> int:
    """Peak memory of one call beyond what was there before and what it gives, in bytes.

    Args:
        computation: What is called; on a CPU the process must do nothing else.
        device: Where it computes.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        given = _bytes(computation())
        return max(torch.cuda.max_memory_allocated(device) - before - given, 0)
    _reset_peak()
    before = _peak()
    given = _bytes(computation())
    return max(_peak() - before - given, 0)


def _bytes(tensors: Iterable[Tensor] | None) -> int:
    return sum(tensor.nbytes for tensor in tensors or ())


def _reset_peak() -> None:
    """Make the process's peak its present memory, without what was freed before (Linux)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def main(argv: Sequence[str]) -> None:
    """The child of `peak_in_child`: build the computation, run it, print its peak."""
    builder, arguments = argv
    module, _, name = builder.partition(":")
    computation: Computation = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(peak_of_call(computation, torch.device("cpu")))


if __name__ == "__main__":
    sys.exit(run(main))
