"""Training step as one CUDA graph. On a small graph, a kernel launch takes longer than the kernel."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.training.step import TrainingStep

WARM_UPS = 3  # steps that compile kernels and create the optimizer state


def wants_capture(choice: str, device: torch.device) -> bool:
    """Whether `--cuda-graph` asks for a CUDA graph on a device.

    Raises:
        InputError: The choice is "on" without a GPU.
    """
    if choice == "on" and device.type != "cuda":
        raise InputError(f"cuda_graph: expected 'auto' or 'off' without a GPU, got 'on' on device {device}")
    return choice != "off" and device.type == "cuda"


class CapturedStep:
    """A training step that runs as one CUDA graph, with the results of `TrainingStep`.

    The first steps run kernel by kernel. The next step is recorded. Later steps copy their batch to a buffer
    and replay the recorded graph. A batch of another size, such as the last batch of an epoch, runs kernel by
    kernel. If the recording fails, a warning is printed and every step runs kernel by kernel.

    Args:
        step: Step to capture.
        batch_size: B of the captured batches.
        generator: Random generator of the step. The graph must advance it as the step does.
    """

    def __init__(self, step: TrainingStep, batch_size: int, generator: Generator) -> None:
        self._step, self._generator = step, generator
        self._batch = torch.empty(batch_size, dtype=torch.int64, device=generator.device)
        self._warm_ups_left = WARM_UPS
        self._replay: Callable[[], None] | None = None

    def __call__(self, batch: Tensor) -> None:
        """Run a step on the training triples with these numbers, int64 `(B,)`."""
        if len(batch) != len(self._batch):
            self._step(batch)
            return
        self._batch.copy_(batch)
        # a stream belongs to a device, and cuda:1 is not the current device
        with torch.cuda.device_of(self._batch):  # type: ignore[no-untyped-call]
            if self._warm_ups_left:
                self._warm_ups_left -= 1
                warm_up(self._run)
                return
            if self._replay is None:
                self._replay = self._record()
            self._replay()

    def _run(self) -> None:
        self._step(self._batch)

    def _record(self) -> Callable[[], None]:
        groups = self._step.optimizer.param_groups
        self._step.optimizer.zero_grad(set_to_none=True)  # the gradients must lie in the graph's memory
        for group in groups:
            group["capturable"] = True
        try:
            return record(self._run, self._generator)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
            print(
                f"warning: no CUDA graph of the step, its kernels run one by one: {problem}", file=sys.stderr
            )
            return self._run
        finally:
            for group in groups:  # with this flag, Adam warns about a step outside of a CUDA graph
                group["capturable"] = False


def warm_up(run: Callable[[], object]) -> None:
    """Run on a side stream, as required before a capture."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)


def record(run: Callable[[], object], generator: Generator | None = None) -> Callable[[], None]:
    """Record the kernel launches of a function without running them.

    Args:
        run: Function after its warm-up. It must not compile anything during the recording.
        generator: Random generator of the function, or None.

    Returns:
        Function that replays the work on the same memory.

    Raises:
        RuntimeError: The function cannot be captured. This is the error of the function, not the later error
            of the capture.
    """
    # PyTorch's default capture stream is created once, on the current device of the first capture
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    generators = [torch.cuda.default_generators[stream.device_index]]  # PyTorch registers this one
    if generator is not None:
        graph.register_generator_state(generator)
        generators.append(generator)
    first: RuntimeError | None = None
    try:
        # after a failed capture `graph` leaves its stream current, and `stream` restores the previous one
        with _restored(generators), torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            try:
                run()
            except RuntimeError as error:
                first = error
                raise
    except RuntimeError as error:
        raise first or error from None
    return graph.replay


@contextmanager
def _restored(generators: list[Generator]) -> Iterator[None]:
    """Restore the state of generators if a `with` block fails.

    A failed capture leaves generators in the capture state, and then they refuse to draw numbers.
    """
    states = [generator.clone_state() for generator in generators]
    try:
        yield
    except BaseException:
        for generator, state in zip(generators, states, strict=True):
            generator.graphsafe_set_state(state)
        raise
