"""If Triton misses something on a machine, one line says what to set."""

import errno
import subprocess
from typing import Any

import pytest
import torch

from lightcake_fast import ContextGraph, Segments, cli, context_layer, segment_softmax_aggregate
from lightcake_fast.errors import InputError
from lightcake_fast.kernels import (
    cpu_backward,
    cpu_forward,
    cpu_segments,
    gpu_backward,
    gpu_forward,
    gpu_segments,
)
from lightcake_fast.train import main

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_COMPILER = RuntimeError(  # Triton's message
    "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."
)
LACKS = [
    (NO_COMPILER, "got none: install gcc, or set CC to a compiler"),
    (PermissionError(errno.EACCES, "Permission denied", "/root/.triton/x"), "set TRITON_CACHE_DIR to a writ"),
    (
        OSError(errno.ENOSPC, "No space left", "/h/.triton/x"),
        r"got /h/\.triton/x \(No space left\): set",
    ),
    (FileNotFoundError(errno.ENOENT, "No such file", "mycc"), "got CC=mycc, which does not exist"),
    (subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"]), "got exit code 1 from /usr/bin/gcc: inst"),
]


def failing(error: Exception) -> Any:
    def fail(*given: Any, **named: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("error", "message"), LACKS)
def test_each_missing_tool_has_a_message_with_a_remedy(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "mycc")
    monkeypatch.setattr(gpu_forward, "forward", failing(error))
    monkeypatch.setattr(gpu_segments, "forward", failing(error))
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]], device=DEVICE), 2, 1)
    rows = torch.randn(2, 4, device=DEVICE)
    with pytest.raises(InputError, match=message):
        context_layer(rows, rows, graph, backend="triton")
    segments = Segments.from_csr(torch.tensor([0, 1]), torch.tensor([0], device=DEVICE), 2)
    with pytest.raises(InputError, match=message):
        segment_softmax_aggregate(rows[:1, 0], rows, segments, backend="triton")


def test_the_backward_has_the_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backward, "backward", failing(NO_COMPILER))
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]], device=DEVICE), 2, 1)
    rows = torch.randn(2, 4, device=DEVICE, requires_grad=True)
    x, _ = context_layer(rows, rows, graph, backend="triton")
    with pytest.raises(InputError, match="set CC"):
        torch.autograd.grad(x.sum(), rows)


def test_other_errors_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_forward, "forward", failing(RuntimeError("a bug")))
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]], device=DEVICE), 2, 1)
    rows = torch.randn(2, 4, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        context_layer(rows, rows, graph, backend="triton")


def test_an_error_of_the_cpu_passes_does_not_blame_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/cache/passes.nbi")
    graph = ContextGraph.from_triples(torch.tensor([[0, 0, 1]]), 2, 1)
    rows = torch.randn(2, 4, requires_grad=True)
    x, _ = context_layer(rows, rows, graph, backend="numba")
    monkeypatch.setattr(cpu_backward, "backward", failing(error))
    with pytest.raises(PermissionError, match=r"passes\.nbi"):
        torch.autograd.grad(x.sum(), rows)
    monkeypatch.setattr(cpu_forward, "forward", failing(error))
    with pytest.raises(PermissionError, match=r"passes\.nbi"):
        context_layer(rows, rows, graph, backend="numba")
    monkeypatch.setattr(cpu_segments, "forward", failing(error))
    segments = Segments.from_csr(torch.tensor([0, 1]), torch.tensor([0]), 2)
    with pytest.raises(PermissionError, match=r"passes\.nbi"):
        segment_softmax_aggregate(rows[:1, 0], rows, segments, backend="numba")


def test_a_command_shows_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(gpu_forward, "forward", failing(NO_COMPILER))
    flags = ["--dataset", "family:60", "--dim", "4", "--layers", "1", "--backend", "triton", "--epochs", "1"]
    flags += ["--device", DEVICE]
    assert cli.run(main, [*flags, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "error: Triton's launcher: expected a C compiler, got none: install gcc, or set CC to a compiler\n"
    )
