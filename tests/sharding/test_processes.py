"""Training with several processes over gloo: equal to one process, ended by errors and signals, resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lightcake_fast import load
from lightcake_fast.partition import main as partition
from lightcake_fast.train import main as train
from tests.sharding.test_experiment import DATA
from tests.support import ranks
from tests.support.comparison import assert_bitwise_equal
from tests.support.processes import HANG, until

# every option that is divided among processes, without random ones
FLAGS = ["--dataset", "family:60", "--dim", "6", "--layers", "2", "--batch-size", "64", "--lr", "0.02"]
FLAGS += ["--profile", "both", "--links", "--mixing", "--backend", "reference", "--quiet"]
FLAGS += ["--weight-average", "0.9"]
FLAGS += ["--input-dropout", "0", "--row-dropout", "0", "--unseen-rate", "0"]
DROPPING = [*FLAGS[:-6], "--input-dropout", "0.2", "--row-dropout", "0.1", "--unseen-rate", "0.1"]
ENDLESS = ["--epochs", "9999", "--patience", "9999"]
COMMAND = "lightcake_fast.train"


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def mrr(folder: Path) -> float:
    figure: float = json.loads((folder / "results.json").read_text())["test"]["all"]["mrr"]
    return figure


def assert_same_course(folder: Path, expected: Path) -> None:
    """Compare losses and metrics within the rounding of float32."""
    assert losses(folder) == pytest.approx(losses(expected), rel=1e-3)
    assert mrr(folder) == pytest.approx(mrr(expected), abs=0.02)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert train([*FLAGS, "--out", str(folder), "--epochs", "3"]) == 0
    return folder


def assert_one_error(outputs: list[tuple[str, str]], message: str) -> None:
    """Check that one process printed one line, the error."""
    lines = [line for _, errors in outputs for line in errors.splitlines()]
    (line,) = [line for line in lines if not line.startswith(("warning:", "lightcake_fast: compiling"))]
    assert line.startswith(f"error: {message}")
    assert "gloo" not in line


@pytest.mark.parametrize(
    ("count", "backend"), [(2, "reference"), pytest.param(4, "numba", marks=pytest.mark.full)]
)
def test_processes_train_like_a_single_process(count: int, backend: str) -> None:
    outputs = ranks.finish(ranks.start(count, "tests.support.sharded_steps", backend))
    assert [out for out, _ in outputs] == ["equal\n"] * count


def test_processes_train_from_a_partition(tmp_path: Path, alone: Path) -> None:
    partition(["family:60", "--parts", "2", "--out", str(tmp_path / "parts")])
    flags = [*FLAGS[2:], "--partition", str(tmp_path / "parts"), "--out", str(tmp_path / "run")]
    (out, errors), (silence, _) = ranks.finish(ranks.start(2, COMMAND, *flags, "--epochs", "3"))
    assert "test all" in out
    assert silence == "", "the first process alone prints"
    assert "fewer may be faster" in errors
    assert_same_course(tmp_path / "run", alone)
    assert load(tmp_path / "run").evaluate().all.mrr == pytest.approx(mrr(tmp_path / "run"), abs=0.02)


def test_processes_rank_entities(tmp_path: Path) -> None:
    plain = ["--dataset", "family:60", "--task", "entity", "--dim", "6", "--backend", "reference", "--quiet"]
    plain += ["--input-dropout", "0", "--n3", "0.01", "--weight-average", "0.9"]
    assert train([*plain, "--out", str(tmp_path / "one"), "--epochs", "2"]) == 0
    folder = tmp_path / "run"
    ranks.finish(ranks.start(2, COMMAND, *plain, "--out", str(folder), "--epochs", "1"))
    assert train(["--resume", str(folder), "--epochs", "2", "--quiet"]) == 0
    assert_same_course(folder, tmp_path / "one")
    (answers,) = load(folder).predict_entities([(DATA.entities[0], DATA.relations[0], None)], top=3)
    assert len(answers.entities) == 3


def test_an_error_in_one_process_is_printed_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    outputs = ranks.finish(ranks.start(3, COMMAND, *FLAGS, "--out", str(tmp_path)), 2, 1, 1)
    assert_one_error(outputs, f"{tmp_path}: expected a new folder, got a run")


def test_an_error_in_all_processes_is_printed_once() -> None:
    assert_one_error(ranks.finish(ranks.start(3, COMMAND, "--bogus"), 2, 2, 2), "unrecognized arguments")


@pytest.mark.full
def test_a_bug_prints_one_traceback(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("1 / 0\n")
    outputs = ranks.finish(ranks.start(2, COMMAND, "--score", "faulty:SCORE", folder=tmp_path), 1, 1)
    assert sum(errors.count("Traceback") for _, errors in outputs) == 1


@pytest.mark.full
def test_torchrun_trains(tmp_path: Path, alone: Path) -> None:
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = [*FLAGS, "--out", str(tmp_path / "run"), "--epochs", "3"]
    done = subprocess.run([*launched, "-m", COMMAND, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test all") == 1
    assert_same_course(tmp_path / "run", alone)


@pytest.mark.full
def test_runs_resume_with_another_number_of_processes(tmp_path: Path, alone: Path) -> None:
    folder = str(tmp_path / "run")
    ranks.finish(ranks.start(2, COMMAND, *FLAGS, "--out", folder, "--epochs", "1"))
    ranks.finish(ranks.start(4, COMMAND, "--resume", folder, "--epochs", "2", "--quiet"))
    assert train(["--resume", folder, "--epochs", "3", "--quiet"]) == 0
    assert_same_course(tmp_path / "run", alone)
    saved = [path.name for path in (tmp_path / "run").glob("last*")]
    assert saved == ["last.safetensors"], "nothing is left of its parts"
    ranks.finish(ranks.start(2, COMMAND, "--resume", folder, "--epochs", "4", "--quiet"))
    assert len(losses(tmp_path / "run")) == 4


@pytest.mark.full
def test_runs_with_the_same_number_of_processes_are_equal(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        ranks.finish(ranks.start(2, COMMAND, *DROPPING, "--out", str(run), "--epochs", "2"))
    assert losses(runs[0]) == losses(runs[1])
    for file in ("last-2-0-0-of-2.safetensors", "last-2-0-1-of-2.safetensors"):
        found, wanted = (load_file(run / file) for run in runs)
        assert found.keys() == wanted.keys()
        for name, tensor in found.items():
            assert_bitwise_equal(tensor, wanted[name], name=name)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_stops_the_others_and_the_run_resumes(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    timeout = HANG if number == signal.SIGKILL else 60  # seconds to wait for a stopped process
    started = ranks.start(3, COMMAND, *DROPPING, *ENDLESS, "--out", str(folder), timeout=timeout)
    until((folder / "best.json").exists, *started)
    os.kill(started[1].pid, number)
    outputs = ranks.finish([started[0], started[2]], 1, 1)
    started[1].kill()
    started[1].communicate()
    assert_one_error(outputs, "rank ")
    assert sum("expected an answer from all other processes" in errors for _, errors in outputs) == 1
    done = len(losses(folder))
    ranks.finish(ranks.start(2, COMMAND, "--resume", str(folder), "--epochs", str(done + 1), "--quiet"))
    assert len(losses(folder)) == done + 1


@pytest.mark.full
def test_a_signal_to_one_process_saves_and_stops_all(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = ranks.start(2, COMMAND, *DROPPING, *ENDLESS, "--out", str(folder))
    until((folder / "best.json").exists, *started)
    started[1].send_signal(signal.SIGTERM)
    ranks.finish(started, 143, 143)
    assert load(folder).evaluate("valid").all.mrr is not None


@pytest.mark.full
def test_unsupported_options_give_one_line_errors(tmp_path: Path) -> None:
    outputs = ranks.finish(ranks.start(2, COMMAND, "--dataset", "family:60", "--cuda-graph", "on"), 2, 2)
    assert_one_error(outputs, "cuda_graph: expected 'auto' or 'off' under torchrun, got 'on'")
    partition(["family:60", "--parts", "3", "--out", str(tmp_path)])
    outputs = ranks.finish(ranks.start(2, COMMAND, "--partition", str(tmp_path)), 2, 2)
    assert_one_error(outputs, f"{tmp_path}: expected a partition for 2 processes, got one for 3")
