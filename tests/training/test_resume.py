"""Runs that are stopped or killed at chosen points in this process end with the same results."""

import dataclasses
import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightcake_fast import load
from lightcake_fast.data import load_dataset
from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text
from lightcake_fast.metrics import Evaluation
from lightcake_fast.train import main as train
from lightcake_fast.training import loop
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.step import TrainingStep
from tests.support.training_runs import EPOCHS, TINY, assert_equal_runs, metrics, resume, run, tensors


class Killed(BaseException):
    """Stand-in for SIGKILL. The package does not handle it."""


@contextmanager
def at_step(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in the middle of the step with this number, counted from 1 over all epochs."""
    original, count = TrainingStep.__call__, 0

    def step(self: TrainingStep, batch: Tensor) -> None:
        nonlocal count
        count += 1
        if count == number:
            act()
        original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", step)
        yield


@contextmanager
def killed_at_write(number: int) -> Iterator[list[int]]:
    """Raise `Killed` before the fsync or rename with this number. The yielded list collects the calls."""
    count = [0]

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                raise Killed
            return original(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "rename")):
            patch.setattr(owner, name, counting(getattr(owner, name)))
        yield count


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def steps_of(folder: Path) -> int:
    """Count the steps of each epoch."""
    count = 0

    def step(self: TrainingStep, batch: Tensor) -> None:
        nonlocal count
        count += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", step)
        run(folder, "--epochs", "1")
    return count


def test_run_has_several_steps_per_epoch(tmp_path: Path) -> None:
    assert steps_of(tmp_path / "run") >= 3


def test_two_runs_are_bitwise_equal(unbroken: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "run", *EPOCHS) == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_other_seed_gives_other_run(unbroken: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "run", *EPOCHS, "--seed", "1") == 0
    assert metrics(tmp_path / "run") != metrics(unbroken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["first", "middle", "last", "second epoch"])
def test_run_stopped_by_a_signal_resumes(
    unbroken: Path, tmp_path: Path, number: signal.Signals, place: str
) -> None:
    steps = steps_of(tmp_path / "count")
    step = {"first": 1, "middle": 2, "last": steps, "second epoch": steps + 2}[place]
    with at_step(step, send(number)), pytest.raises(SystemExit) as stop:
        run(tmp_path / "run", *EPOCHS)
    assert stop.value.code == 128 + number
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_run_stopped_twice_in_one_epoch_resumes(unbroken: Path, tmp_path: Path) -> None:
    with at_step(1, send(signal.SIGINT)), pytest.raises(SystemExit):
        run(tmp_path / "run", *EPOCHS)
    with at_step(1, send(signal.SIGINT)), pytest.raises(SystemExit):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_run_stopped_during_validation_resumes(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Experiment.evaluate

    def interrupted(experiment: Experiment, split: str) -> Evaluation:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(experiment, split)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "evaluate", interrupted)
        with pytest.raises(SystemExit):
            run(tmp_path / "run", *EPOCHS)
    assert len(metrics(tmp_path / "run")) == 1
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_more_signals_do_not_interrupt_a_save(unbroken: Path, tmp_path: Path) -> None:
    fsync = os.fsync

    def interrupted(file: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        fsync(file)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:

        def press_on() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            patch.setattr(os, "fsync", interrupted)

        with at_step(2, press_on), pytest.raises(SystemExit):
            run(tmp_path / "run", *EPOCHS)
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_third_ctrl_c_aborts_a_save_and_keeps_the_old_checkpoint(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, main, over = tmp_path / "run", threading.main_thread(), threading.Event()
    with at_step(2, send(signal.SIGTERM)), pytest.raises(SystemExit):
        run(folder, *EPOCHS)
    before = (folder / "last.safetensors").read_bytes()
    made: list[Interrupt] = []

    def interrupt(**options: Any) -> Interrupt:
        made.append(Interrupt(**options))
        return made[0]

    def press(times: int) -> None:
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        while made[0].presses < times:
            over.wait(0.01)

    def endless(file: int) -> None:
        press(2)
        assert "a save is under way" in capfd.readouterr().err
        press(3)
        over.wait()

    def press_on() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr(os, "fsync", endless)

    command = importlib.import_module("lightcake_fast.train")
    monkeypatch.setattr(command, "Interrupt", interrupt)
    with at_step(1, press_on), pytest.raises(SystemExit) as stop:
        resume(folder)
    over.set()
    monkeypatch.undo()
    assert stop.value.code == 130
    assert "the previous checkpoint is intact" in capfd.readouterr().err
    assert (folder / "last.safetensors").read_bytes() == before
    assert resume(folder) == 0
    assert_equal_runs(folder, unbroken)


@pytest.mark.parametrize("abortable", [True, False])
def test_ctrl_c_of_several_ranks_and_sigterm_never_abort_a_save(abortable: bool) -> None:
    number = signal.SIGTERM if abortable else signal.SIGINT
    with Interrupt(abortable=abortable) as interrupt:
        interrupt.defer()
        for _ in range(5):
            os.kill(os.getpid(), number)
    assert interrupt.signal == number


def test_signal_before_training_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = importlib.import_module("lightcake_fast.train")  # `lightcake_fast.train` is the function
    monkeypatch.setattr(command, "load_dataset", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "run")
    assert stop.value.code == 143
    assert not (tmp_path / "run").exists()


def test_signal_handlers_are_restored(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    run(tmp_path / "run", "--epochs", "1")
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("step", [1, 2, 5, 8])
def test_run_killed_between_writes_resumes(unbroken: Path, tmp_path: Path, step: int) -> None:
    def kill() -> None:
        raise Killed

    with at_step(step, kill), pytest.raises(Killed):
        run(tmp_path / "run", *EPOCHS)
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_run_killed_before_any_write_resumes(unbroken: Path, tmp_path: Path) -> None:
    with killed_at_write(0) as writes:
        run(tmp_path / "count", *EPOCHS)
    assert writes[0] > 20
    for number in range(1, writes[0] + 1):
        folder = tmp_path / str(number)
        with killed_at_write(number), pytest.raises(Killed):
            run(folder, *EPOCHS)
        if folder.exists():
            assert resume(folder) == 0
        else:  # killed before the folder existed: the run never started
            assert run(folder, *EPOCHS) == 0
        assert_equal_runs(folder, unbroken)


def test_run_killed_while_resuming_resumes(unbroken: Path, tmp_path: Path) -> None:
    with at_step(2, send(signal.SIGINT)), pytest.raises(SystemExit):
        run(tmp_path / "run", *EPOCHS)
    number = 0
    while not (tmp_path / "run" / "results.json").exists():
        number += 1
        with killed_at_write(number):
            try:
                resume(tmp_path / "run")
            except Killed:
                continue
    assert number > 5
    assert_equal_runs(tmp_path / "run", unbroken)


def test_run_is_saved_at_time_intervals(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        raise Killed

    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    with at_step(3, kill), pytest.raises(Killed):
        run(tmp_path / "run", *EPOCHS)
    assert (tmp_path / "run" / "last.safetensors").exists()
    monkeypatch.undo()
    done = []
    with at_step(1, lambda: done.append(len(metrics(unbroken)))):
        assert resume(tmp_path / "run") == 0
    assert done
    assert_equal_runs(tmp_path / "run", unbroken)


def test_saves_take_at_most_a_tenth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated clock, a step takes 10 seconds and a save 20, so saves are 200 seconds apart."""
    now, steps, saved = [0.0], [0], []
    step, save = TrainingStep.__call__, RunFolder.save_last

    def slow_step(self: TrainingStep, batch: Tensor) -> None:
        now[0] += 10
        steps[0] += 1
        step(self, batch)

    def slow_save(self: RunFolder, *arguments: Any, **options: Any) -> None:
        now[0] += 20
        saved.append(steps[0])
        save(self, *arguments, **options)

    monkeypatch.setattr(TrainingStep, "__call__", slow_step)
    monkeypatch.setattr(RunFolder, "save_last", slow_save)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert run(tmp_path / "run", "--epochs", "1", "--batch-size", "4") == 0
    assert steps[0] > 45
    # the first after SAVE_SECONDS, the last at the end of the epoch
    assert saved == [*range(5, steps[0], 20), steps[0]]


def test_resume_with_more_epochs(unbroken: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1") == 0
    assert resume(tmp_path / "run", "--epochs", "3") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_run_killed_after_resume_with_more_epochs_resumes(unbroken: Path, tmp_path: Path) -> None:
    def kill() -> None:
        raise Killed

    assert run(tmp_path / "run", "--epochs", "1") == 0
    with at_step(2, kill), pytest.raises(Killed):
        resume(tmp_path / "run", "--epochs", "3")
    assert resume(tmp_path / "run") == 0
    assert_equal_runs(tmp_path / "run", unbroken)


def test_more_patience_continues_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--lr", "1e-9", "--seed", "3"]  # the model learns nothing, so the first epoch stays the best
    assert run(tmp_path / "run", *flags, "--epochs", "9", "--patience", "2") == 0
    ended = len(metrics(tmp_path / "run"))
    assert ended < 9
    assert train(["--resume", str(tmp_path / "run"), "--epochs", "20"]) == 0
    assert "use more --patience than 2" in capsys.readouterr().out
    assert resume(tmp_path / "run", "--patience", "9", "--epochs", str(ended + 2)) == 0
    assert run(tmp_path / "whole", *flags, "--patience", "9", "--epochs", str(ended + 2)) == 0
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")


def test_finished_run_prints_this_and_changes_nothing(
    unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in unbroken.iterdir()}
    capsys.readouterr()
    assert resume(unbroken) == 0
    quiet = capsys.readouterr().out
    assert quiet.count("\n") == 1  # "seen" equals "all"
    assert "MRR" in quiet
    assert train(["--resume", str(unbroken)]) == 0
    shown = capsys.readouterr().out
    assert "this run is finished after 3 epochs" in shown
    assert "use more --epochs than 3" in shown.replace("\n", " ")
    assert str(unbroken) in shown.replace("\n", "")
    assert {path.name: path.read_bytes() for path in unbroken.iterdir()} == before


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--device", "cuda:99", "device: expected one of "),
        ("--cuda-graph", "on", "cuda_graph: expected 'auto' or 'off' without a GPU"),
        ("--backend", "triton", "backend: expected tensors on a GPU for 'triton'"),
    ],
)
def test_rejected_resume_does_not_change_run(
    unbroken: Path, flag: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightcake_fast.backends._INTERPRETED", False)
    before = {path.name: path.read_bytes() for path in unbroken.iterdir()}
    with pytest.raises(InputError, match=message):
        resume(unbroken, "--epochs", "9", *(() if flag == "--device" else ("--device", "cpu")), flag, value)
    assert {path.name: path.read_bytes() for path in unbroken.iterdir()} == before


@pytest.mark.parametrize(
    ("field", "other", "message"),
    [
        ('"dim": 6', '"dim": 8', "expected a checkpoint with dim 8, got 6"),
        (
            '"score": "distmult"',
            '"score": "transe"',
            "expected a checkpoint with score 'transe', got 'distmult'",
        ),
        ('"family:60"', '"family:61"', "got one of another data set"),
    ],
)
def test_changed_configuration_is_rejected(tmp_path: Path, field: str, other: str, message: str) -> None:
    with at_step(2, send(signal.SIGINT)), pytest.raises(SystemExit):
        run(tmp_path / "run", *EPOCHS)
    config = (tmp_path / "run" / "config.json").read_text()
    assert field in config
    replace_text(tmp_path / "run" / "config.json", config.replace(field, other))
    with pytest.raises(InputError, match=message):
        resume(tmp_path / "run", "--epochs", "9")
    assert '"epochs": 3' in (tmp_path / "run" / "config.json").read_text()


def test_run_without_checkpoint_does_not_restart(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "run")
    (tmp_path / "run" / "last.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(InputError, match=r"expected last\.safetensors .* need only best\.safetensors"):
        resume(tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert load(tmp_path / "run").evaluate("test").all.mrr


def test_rejected_resume_does_not_change_settings(tmp_path: Path) -> None:
    assert run(tmp_path / "run", *EPOCHS) == 0
    (tmp_path / "run" / "dataset.sha256").write_bytes(b"\xff\n")
    before = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(InputError, match="expected the run's own data set"):
        resume(tmp_path / "run", "--epochs", "9")
    (tmp_path / "run" / "dataset.sha256").unlink()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        resume(tmp_path / "run", "--epochs", "9")
    assert (tmp_path / "run" / "config.json").read_text() == before


@pytest.mark.parametrize("file", ["last.safetensors", "best.safetensors", "metrics.jsonl", "config.json"])
def test_damaged_files_are_rejected(tmp_path: Path, file: str) -> None:
    steps = steps_of(tmp_path / "count")
    with at_step(steps + 2, send(signal.SIGINT)), pytest.raises(SystemExit):
        run(tmp_path / "run", *EPOCHS)
    path = tmp_path / "run" / file
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=str(path)):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.entities"), "got no model.entities"),
        (lambda state: state.pop("adam.relations.exp_avg"), "got no adam.relations.exp_avg"),
        (lambda state: state.pop("generator"), "got no generator"),
        (lambda state: state.update(extra=torch.zeros(1)), "got unknown extra"),
        (lambda state: state.update({"adam.entities.max": torch.zeros(1)}), "got unknown adam.entities.max"),
        (
            lambda state: state.update({"model.entities": torch.zeros(2, 6)}),
            r"expected .*, got torch.float32 \(2, 6\)",
        ),
        (
            lambda state: state.update({"model.relations": state["model.relations"].half()}),
            "model.relations as torch.float32 .* got torch.float16",
        ),
        (lambda state: state.update(generator=torch.zeros(3).byte()), "expected a random state"),
    ],
)
def test_checkpoint_with_wrong_tensors_is_rejected(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    with at_step(2, send(signal.SIGINT)), pytest.raises(SystemExit):
        run(tmp_path / "run", *EPOCHS)
    folder, fingerprint = RunFolder.open(tmp_path / "run"), load_dataset("family:60").fingerprint
    saved = folder.load_last(fingerprint)
    assert saved is not None
    state, position, notes = saved
    change(state)
    folder.save_last(state, position, fingerprint, device=notes["device"])
    with pytest.raises(InputError, match=message) as caught:
        resume(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", [{}, {"entities": torch.zeros(2, 6)}])
def test_best_weights_of_another_model_are_rejected(
    unbroken: Path, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    shutil.copytree(unbroken, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    folder, fingerprint = RunFolder.open(tmp_path / "run"), load_dataset("family:60").fingerprint
    saved = folder.load_last(fingerprint)
    assert saved is not None
    # as after an epoch that was not the best: best.safetensors is not rewritten
    position = dataclasses.replace(saved[1], best_epoch=saved[1].epoch - 1)
    folder.save_last(saved[0], position, fingerprint, device="cpu")
    folder.save_best(weights, position, fingerprint)
    with pytest.raises(InputError, match="expected the tensors of the model, got no "):
        resume(tmp_path / "run")


def test_all_weights_are_trained_and_saved(unbroken: Path) -> None:
    names = {name for name in tensors(unbroken) if name.startswith("best")}
    parts = {"entities", "relations", "relation_bias", "unknown_head", "unknown_tail", "input_profile"}
    parts |= {f"profile.{part}" for part in ("head", "of_head", "tail", "of_tail")} | {"links.of_link"}
    parts |= {"entity_mixing", "relation_mixing"}
    assert names == {f"best.safetensors:{part}" for part in parts}


@pytest.mark.parametrize("lines", [1, 4])
def test_run_with_closed_stdout_can_resume(lines: int, unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = [flag for flag in (*TINY, *EPOCHS) if flag != "--quiet"]
    code = f'set -o pipefail; "$0" -m lightcake_fast.train "$@" | head -n {lines}'
    values = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", code, sys.executable, *flags, "--out", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=values,
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (141, "", lines)
    assert (folder / "last.safetensors").exists()
    assert not (folder / "results.json").exists()
    assert resume(folder) == 0
    assert_equal_runs(folder, unbroken)


def test_run_killed_before_first_save_resumes_only_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    folder = tmp_path / "run"

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_id_maps", killed)
        with pytest.raises(Killed):
            run(folder, *EPOCHS)
    assert not (folder / "last.safetensors").exists()
    with pytest.raises(InputError, match=r"expected the run's own data set, got another one, family"):
        resume(folder, "--dataset", "family:61")
    assert resume(folder) == 0
    assert_equal_runs(folder, unbroken)
