"""A test that fails can be repeated: random numbers and Hypothesis's examples are the same each time."""

import hypothesis
import pytest

from tests.support import fuzz


def cases_tried(monkeypatch: pytest.MonkeyPatch, seed: int | None) -> list[fuzz.Case]:
    """The cases that the fuzzer checks."""
    tried: list[fuzz.Case] = []
    monkeypatch.setattr(fuzz, "check", lambda case, _: tried.append(case))
    fuzz.fuzz("numba", 20, seed=seed)
    return tried


@pytest.mark.skipif(not hypothesis.settings().derandomize, reason="the full run draws new examples")
def test_examples_are_the_same_without_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases_tried(monkeypatch, None) == cases_tried(monkeypatch, None)


def test_a_seed_chooses_the_cases_of_the_fuzzer(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cases_tried(monkeypatch, 1)
    assert first == cases_tried(monkeypatch, 1)
    assert first != cases_tried(monkeypatch, 2)


def test_the_fuzzer_prints_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(fuzz, "fuzz", lambda *_, seed: seeds.append(seed))
    for arguments in ([], ["--seed", "7"]):
        monkeypatch.setattr("sys.argv", ["fuzz", "--backend", "numba", *arguments])
        assert fuzz.main() == 0
        assert capsys.readouterr().out.splitlines()[0] == f"seed {seeds[-1]}"
    assert seeds[-1] == 7
