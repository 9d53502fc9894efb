"""Fixtures of every test: seeds, poisoned fresh memory, few threads, and the public data sets."""

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

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads take the other tests' cores
import torch

# tests of training are about the CPU, also where there is a GPU; those of a GPU name it
os.environ.setdefault("LIGHTCAKE_FAST_DEVICE", "cpu")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, so before any test module

# `make test` tries the same examples each time; `make test-full` takes the random profile and a new seed
for _name in ("random", "derandomized"):
    hypothesis.settings.register_profile(
        _name,
        derandomize=_name == "derandomized",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        database=None,
        print_blob=True,
    )
    hypothesis.settings.load_profile(_name)  # the last one holds without --hypothesis-profile

MAX_THREADS = 4  # the tensors of tests are small: a wide pool costs more than it brings


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(min(torch.get_num_threads(), MAX_THREADS))
    if "PYTEST_XDIST_WORKER" in os.environ:  # the other workers have the other cores
        from lightcake_fast.kernels import cpu_together

        cpu_together.MOST_PROCESSES = 1


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that nothing stopped."""
    from tests.support.training_runs import EPOCHS, run  # the package is imported after the lines above

    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(folder, *EPOCHS) == 0
    return folder


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers as a score is gone afterwards."""
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
    """On a GPU few triples make a hub, and in the interpreter a warp is wide."""
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
    """Seed a fixture of several tests by its name: it must not depend on the test that asks first."""
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
        fresh.detach().fill_(poison)  # the caller may have asked for a leaf that requires gradients
        return fresh

    return allocate_poisoned


@pytest.fixture(autouse=True)
def _poison_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialised tensors with NaN, so that an output nobody wrote shows.

    PyTorch's own `fill_uninitialized_memory` works only under deterministic algorithms, which would
    swap the algorithms under test for others.
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
    """Import a module that tests may lack; skip where it is absent, but fail under `CI=true`."""

    def find(module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            extras = "lightcake_fast[dev,mlflow,wandb]"
            reason = f"needs {error.name}: pip install torch-geometric pykeen '{extras}'"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return find


@pytest.fixture(scope="session")
def public_data() -> Callable[[str], Path]:
    """Give the folder of a public data set, by any case of its name; skip where it is absent.

    Under `CI=true` an absent set is a failure: nothing may go untested there unseen.
    """

    def find(name: str) -> Path:
        root = os.environ.get("LIGHTCAKE_FAST_DATA")
        folders = [] if root is None or not Path(root).is_dir() else list(Path(root).iterdir())
        for folder in folders:
            if folder.is_dir() and folder.name.lower() == name.lower():
                return folder
        reason = f"needs {name}: put its folder into the one that LIGHTCAKE_FAST_DATA names (now {root!r})"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return find
