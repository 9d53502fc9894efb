"""Memory, not time, for starting on a graph with a million triples, and the printed table."""

from pathlib import Path

import pytest

from bench import scaling

MEBIBYTE = 2**20


@pytest.mark.full
def test_memory_at_a_million_triples(tmp_path: Path) -> None:
    """The bounds are a quarter above the measured peaks: names and ids 124 MiB, with the plan 139 MiB."""
    scaling.write_graph(tmp_path / "graph", 1_000_000)
    for stage, most in (("read", 155), ("plan", 175)):
        found = scaling.measure(stage, tmp_path / "graph", tmp_path / "cache")
        assert found["peak_bytes"] - found["imports_bytes"] < most * MEBIBYTE, stage


def test_stage_runs_in_a_separate_process(tmp_path: Path) -> None:
    scaling.write_graph(tmp_path / "graph", 4_000)
    found = scaling.measure("plan", tmp_path / "graph", tmp_path / "cache")
    assert found["peak_bytes"] > found["imports_bytes"] > 0
    assert found["seconds"] > 0


def test_saved_run_is_loaded(tmp_path: Path) -> None:
    scaling.write_graph(tmp_path / "graph", 4_000)
    for stage in ("save", "load"):
        found = scaling.measure(stage, tmp_path / "graph", tmp_path / "cache")
        assert found["peak_bytes"] > found["imports_bytes"] > 0
    assert (tmp_path / "graph" / "run" / "last.safetensors").stat().st_size > 3 * 4_000 // 4 * 64 * 4


def test_table_shows_growth() -> None:
    def result(factor: int) -> dict[str, float]:
        return {"seconds": 0.5 * factor, "imports_bytes": 2**30, "peak_bytes": 2**30 + 2**28 * factor**2}

    results = {
        (stage, size): result(size // 10**6) for stage in scaling.STAGES for size in (10**6, 4 * 10**6)
    }
    lines = scaling.table([10**6, 4 * 10**6], results).splitlines()
    assert lines[0] == "| | 1 M: s | GiB | 4 M: s | GiB | growth: time | memory |"
    assert lines[2] == "| reading the files | 0.5 | 1.25 | 2.0 | 5.00 | 1.00 | 2.00 |"
    assert len(lines) == 2 + len(scaling.STAGES)
