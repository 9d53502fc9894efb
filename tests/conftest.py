"""Fixtures for all tests: seeds, NaN in uninitialized memory, few threads, and the public data sets."""

import importlib
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow down the other tests
import torch

# training tests use the CPU, also on a machine with a GPU; GPU tests set the device explicitly
os.environ.setdefault("LIGHTCAKE_FAST_DEVICE", "cpu")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, so before any test module

# `make test` repeats the same examples; `make test-full` uses the random profile and a new seed
for _name in ("random", "derandomized"):
    hypothesis.settings.register_profile(
        _name,
        derandomize=_name == "derandomized",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        database=None,
        print_blob=True,
    )
    hypothesis.settings.load_profile(_name)  # the last profile is the default

MAX_THREADS = 4  # the tensors of tests are small, so more threads would be slower


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(min(torch.get_num_threads(), MAX_THREADS))
    if "PYTEST_XDIST_WORKER" in os.environ:  # the other workers use the other cores
        from lightcake_fast.kernels import cpu_together

        cpu_together.MOST_PROCESSES = 1


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny run without interruption."""
    from tests.support.training_runs import EPOCHS, run  # import the package after the environment is set

    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(folder, *EPOCHS) == 0
    return folder


@pytest.fixture
def registry() -> Iterator[None]:
    """Remove the scores that a test registers."""
    from lightcake_fast.kernels import scores as blocks
    from lightcake_fast.reference import scores as references

    tables: list[dict[str, Any]] = [blocks.SCORES, references.SCORES]
    before = [(table, dict(table)) for table in tables]
    yield
    for table, was in before:
        table.clear()
        table.update(was)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the chunk sizes on a GPU, so that few triples make a hub. Widen warps in the interpreter."""
    from lightcake_fast.kernels import gpu_launch, plan

    if not torch.cuda.is_available():
        monkeypatch.setattr(gpu_launch, "warp_size", lambda: 256)
    monkeypatch.setattr(plan, "GPU_ENTITY_CHUNK", 7)
    monkeypatch.setattr(plan, "GPU_RELATION_CHUNK", (8, 16))


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Seed each shared fixture by its name. Then it does not depend on the first test that uses it."""
    if fixturedef.scope != "function":
        _seed(zlib.crc32(fixturedef.argname.encode()))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    _seed(0)


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = allocate(*args, **kwargs)
        if fresh.is_floating_point() or fresh.is_complex():
            poison: float | bool | int = float("nan")
        elif fresh.dtype is torch.bool:
            poison = True
        else:
            poison = torch.iinfo(fresh.dtype).max
        fresh.detach().fill_(poison)  # detach: the tensor can be a leaf that requires gradients
        return fresh

    return allocate_poisoned


@pytest.fixture(autouse=True)
def _poison_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialized tensors with NaN, so that tests notice outputs that were never written.

    PyTorch's `fill_uninitialized_memory` works only with deterministic algorithms. These would replace the
    algorithms under test.
    """
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
        (torch.Tensor, "new_empty_strided"),
    ):
        monkeypatch.setattr(owner, name, _poisoned(getattr(owner, name)))


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Any]:
    """Return a function that imports an optional package. If it is missing, skip, or fail with `CI=true`."""

    def find(module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            extras = "lightcake_fast[dev,mlflow,wandb]"
            reason = f"expected {error.name}, got no module: pip install torch-geometric pykeen '{extras}'"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return find


@pytest.fixture(scope="session")
def public_data() -> Callable[[str], Path]:
    """Return a function that finds the folder of a public data set, by its name in any case.

    If the folder is missing, the test is skipped, or fails with `CI=true`.
    """

    def find(name: str) -> Path:
        root = os.environ.get("LIGHTCAKE_FAST_DATA")
        folders = [] if root is None or not Path(root).is_dir() else list(Path(root).iterdir())
        for folder in folders:
            if folder.is_dir() and folder.name.lower() == name.lower():
                return folder
        reason = f"LIGHTCAKE_FAST_DATA: expected a folder with {name}, got {root!r}: add {name} there"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return find
