"""The operators in programs of torch.export, also after saving and loading."""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightcake_fast import Segments, segment_softmax_aggregate
from lightcake_fast.ops import context_layer
from tests.support.comparison import assert_bitwise_equal
from tests.support.graphs import layer_inputs


class Program(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def written_and_read(program: nn.Module, x: Tensor) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(torch.export.export(program, (x,)), file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_the_layer_over_a_graph_that_nothing_has_used(backend: str) -> None:
    x, y, graph, _ = layer_inputs("degrees", 8, torch.float32)
    program = Program(lambda x: context_layer(x, y, graph, backend=backend)[0])
    again = written_and_read(program, x)
    # the program runs after the export, so the export builds the order of work
    assert_bitwise_equal(again(x), program(x))


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_segments_without_a_long_one(backend: str) -> None:
    segments = Segments.from_csr(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)
    values = torch.linspace(-1, 1, 8).view(2, 4)
    program = Program(lambda s: segment_softmax_aggregate(s, values, segments, backend=backend))
    scores = torch.tensor([0.5, -1.0, 2.0])
    assert_bitwise_equal(written_and_read(program, scores)(scores), program(scores))
