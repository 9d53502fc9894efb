"""The training step as one CUDA graph: a small graph's kernels take longer to launch than to run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.training.step import TrainingStep

WARM_UPS = 3  # steps that compile kernels and make what the optimiser keeps


def wants_capture(choice: str, device: torch.device) -> bool:
    """Whether `--cuda-graph` asks for a graph on a device.

    Raises:
        InputError: It is "on" without a GPU.
    """
    if choice == "on" and device.type != "cuda":
        raise InputError(f"cuda_graph: got 'on' with the device {device}, wanted a GPU")
    return choice != "off" and device.type == "cuda"


class CapturedStep:
    """A training step with the results of `TrainingStep`, but launched as a whole.

    The first steps run as they are written, the next one is recorded, and from then on it is replayed on
    whatever batch lies in its buffer. A batch of another size, an epoch's last, is launched kernel by kernel,
    and so is every batch, with a warning, where the recording fails.

    Args:
        step: what to capture.
        batch_size: B of the batches that it is captured for.
        generator: source of the step's randomness: a graph must advance it as the step does.
    """

    def __init__(self, step: TrainingStep, batch_size: int, generator: Generator) -> None:
        self._step, self._generator = step, generator
        self._batch = torch.empty(batch_size, dtype=torch.int64, device=generator.device)
        self._warm_ups_left = WARM_UPS
        self._replay: Callable[[], None] | None = None

    def __call__(self, batch: Tensor) -> None:
        """Step on the training triples numbered `batch`, int64."""
        if len(batch) != len(self._batch):
            self._step(batch)
            return
        self._batch.copy_(batch)
        # streams belong to a device, which with cuda:1 is not the current one
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
        self._step.optimizer.zero_grad(set_to_none=True)  # the graph's gradients lie in its own memory
        for group in groups:
            group["capturable"] = True
        try:
            return record(self._run, self._generator)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
            print(
                f"warning: no CUDA graph of the step, which is launched instead: {problem}", file=sys.stderr
            )
            return self._run
        finally:
            for group in groups:  # Adam warns of a step outside of a graph that is said to be in one
                group["capturable"] = False


def warm_up(run: Callable[[], object]) -> None:
    """Run on a stream of its own, as work that is recorded later must."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)


def record(run: Callable[[], object], generator: Generator | None = None) -> Callable[[], None]:
    """Record what a function launches, without running it.

    Args:
        run: has been warmed up: nothing may be compiled while it is recorded.
        generator: source of its randomness, if it has any.

    Returns:
        Replays the work on the same memory.

    Raises:
        RuntimeError: The function cannot be captured: its own error, not the later error of the capture.
    """
    # PyTorch's default stream for this is made once, on whatever device is then the current one
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    generators = [torch.cuda.default_generators[stream.device_index]]  # PyTorch registers this one itself
    if generator is not None:
        graph.register_generator_state(generator)
        generators.append(generator)
    first: RuntimeError | None = None
    try:
        # `graph` leaves its stream the current one if the capture ends with an error: `stream` does not
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
    """Give generators their state back if a `with` block fails.

    A failed capture leaves them in the capture state, in which they refuse to draw numbers.
    """
    states = [generator.clone_state() for generator in generators]
    try:
        yield
    except BaseException:
        for generator, state in zip(generators, states, strict=True):
            generator.graphsafe_set_state(state)
        raise
