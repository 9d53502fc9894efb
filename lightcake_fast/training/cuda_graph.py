"""A function as a CUDA graph: one launch where it makes hundreds of small ones."""

from collections.abc import Callable

import torch

from lightcake_fast.errors import InputError

WARM_UP = 3  # calls before the capture, which may neither compile a kernel nor set up a library


class CudaGraph:
    """Calls a function: the first `WARM_UP` times directly, then by replaying what it launched once.

    A call does what a direct one does, as long as all that changes between calls lies on the device, in
    tensors that stay where they are.

    Args:
        function: Launches work on the device and reads nothing back.
        device: The GPU.
        generator: The source of its random numbers, on that device; the graph moves it on.
    """

    def __init__(
        self, function: Callable[[], object], device: torch.device, generator: torch.Generator | None = None
    ) -> None:
        self._function, self._device, self._generator = function, device, generator
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._calls, self._graph = 0, torch.cuda.CUDAGraph()

    def __call__(self) -> None:
        """Do the function's work once."""
        with torch.cuda.device(self._device):
            if self._calls < WARM_UP:
                self._directly()
            else:
                if self._calls == WARM_UP:
                    self._capture()
                self._graph.replay()
        self._calls += 1

    def _directly(self) -> None:
        """On the stream of the capture: libraries keep workspaces for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._function()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _capture(self) -> None:
        if self._generator is not None:
            self._graph.register_generator_state(self._generator)
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._function()


def wants_cuda_graph(choice: str, device: torch.device, model: str) -> bool:
    """Whether `--cuda-graph` asks for a graph: "auto" does for LightCAKE on a GPU.

    Raises:
        InputError: It is "on" without a GPU.
    """
    if choice == "on" and device.type != "cuda":
        raise InputError(f"cuda_graph: got 'on' with device {device}, wanted a GPU (or auto, or off)")
    return choice == "on" or (choice == "auto" and device.type == "cuda" and model == "lightcake")
