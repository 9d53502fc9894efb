"""A failed test can be repeated: random numbers and Hypothesis examples are the same in each run."""

import random
import zlib

import hypothesis
import numpy as np
import pytest
import torch

from tests.support import fuzz


def draws() -> list[float]:
    """Draw a number from each generator that a test can use without a seed."""
    return [torch.rand(()).item(), np.random.random_sample(), random.random()]  # noqa: NPY002


def first_draws(seed: int) -> list[float]:
    """Return the draws of `draws` after this seed, from separate generators."""
    number = torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
    return [number, np.random.RandomState(seed).random_sample(), random.Random(seed).random()]


@pytest.fixture(scope="module")
def drawn() -> list[float]:
    return draws()


@pytest.mark.parametrize("test", ["first", "second"])
def test_each_test_and_wide_fixture_has_a_seed(test: str, drawn: list[float]) -> None:
    assert draws() == first_draws(0)
    assert drawn == first_draws(zlib.crc32(b"drawn"))


def cases_tried(monkeypatch: pytest.MonkeyPatch, seed: int | None) -> list[fuzz.Case]:
    """Return the cases that the fuzzer checks."""
    tried: list[fuzz.Case] = []
    monkeypatch.setattr(fuzz, "check", lambda case, _: tried.append(case))
    fuzz.fuzz("numba", 20, seed=seed)
    return tried


@pytest.mark.skipif(not hypothesis.settings().derandomize, reason="the full run draws new examples")
def test_examples_repeat_without_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases_tried(monkeypatch, None) == cases_tried(monkeypatch, None)


def test_seed_selects_fuzzer_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cases_tried(monkeypatch, 1)
    assert first == cases_tried(monkeypatch, 1)
    assert first != cases_tried(monkeypatch, 2)


def test_fuzzer_prints_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(fuzz, "fuzz", lambda *_, seed: seeds.append(seed))
    for arguments in ([], ["--seed", "7"]):
        monkeypatch.setattr("sys.argv", ["fuzz", "--backend", "numba", *arguments])
        assert fuzz.main() == 0
        assert capsys.readouterr().out.splitlines()[0] == f"seed {seeds[-1]}"
    assert seeds[-1] == 7
