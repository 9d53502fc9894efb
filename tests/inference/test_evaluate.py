"""The evaluate command: metrics equal to training, breakdowns by group, and comparison of runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightcake_fast import cli, evaluate, load
from lightcake_fast.data import KnowledgeGraph
from lightcake_fast.inference.breakdown import by_degree, by_relation
from tests.support.trained_runs import train_run
from tests.support.training_runs import run as train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("trained")
    return str(train_run(folder)), str(train_run(folder, "--layers", "0"))


def lines(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> list[Any]:
    assert cli.run(evaluate.main, [*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_metrics_equal_the_metrics_of_training(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((Path(runs[0]) / "results.json").read_text())
    for flags, split in (([], "test"), (["--split", "valid"], "valid")):
        (record,) = lines(capsys, [runs[0], *flags])
        assert record == {"run": runs[0], "split": split, "ties": "realistic", **results[split]}


def test_ties_flag_sets_the_tie_policy(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = lines(capsys, [runs[0], "--ties", "pessimistic"])
    expected = load(runs[0]).evaluate("test", "pessimistic").to_dict()
    assert record == {"run": runs[0], "split": "test", "ties": "pessimistic", **expected}


@pytest.mark.parametrize("by", ["relation", "degree"])
def test_groups_sum_to_the_whole_split(
    runs: tuple[str, str], by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = lines(capsys, [runs[0], "--by", by])
    groups = record["by"][by]
    assert len(groups) > 2
    assert sum(group["count"] for group in groups) == record["all"]["count"]
    for mean in ("mrr", "mr", "hits_at_1"):
        total = sum(group["count"] * group[mean] for group in groups)
        assert total / record["all"]["count"] == pytest.approx(record["all"][mean])


def test_groups_by_relation_and_by_smaller_degree(runs: tuple[str, str]) -> None:
    graph = load(runs[0]).data
    relations = by_relation(graph, "test")
    for group in relations:
        assert {graph.relations[r] for r in graph.test[group.rows, 1]} == {group.name}
    sizes = [len(group.rows) for group in relations]
    assert sizes == sorted(sizes, reverse=True)

    degrees = np.zeros(graph.num_entities, dtype=int)
    for h, _, t in graph.train:
        degrees[h] += 1
        degrees[t] += 1
    groups = by_degree(graph, "test")
    for group in groups:
        low, _, high = group.name.partition("-")
        for h, _, t in graph.test[group.rows]:
            assert int(low) <= min(degrees[h], degrees[t]) <= int(high or low)
    assert groups[0].name == "0"
    assert len(groups[0].rows) == 1  # the entity without training triples


def test_metrics_print_as_tables(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(evaluate.main, [runs[0], "--by", "relation"]) == 0
    one = capsys.readouterr().out
    mrr = json.loads((Path(runs[0]) / "results.json").read_text())["test"]["all"]["mrr"]
    assert f"{mrr:.4f}" in one
    assert "cousin" in one
    assert "Hits@10" in one
    assert cli.run(evaluate.main, [runs[0], "--by", "degree", "--by", "relation"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("test by ")]
    assert titles == ["test by degree", "test by relation"]
    (record,) = lines(capsys, [runs[0], "--by", "degree", "--by", "relation"])
    assert list(record["by"]) == ["degree", "relation"]
    assert cli.run(evaluate.main, [*runs, "--by", "degree"]) == 0
    both = capsys.readouterr().out
    row = next(line for line in both.splitlines() if line.startswith("│ 0 "))
    for run in runs:
        trained = load(run)
        (unseen,) = by_degree(trained.data, "test")[0].rows
        assert f" {1 / trained.ranks()[unseen].item():.4f} " in row


def test_runs_of_two_tasks_are_rejected_in_a_breakdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--unseen-rate", "0", "--no-relation-bias", "--epochs", "1")
    runs = [str(train_run(tmp_path / "of", *flags, "--task", task)) for task in ("entity", "relation")]
    assert cli.run(evaluate.main, runs) == 0
    assert cli.run(evaluate.main, [*runs, "--by", "degree"]) == 2
    error = capsys.readouterr().err
    assert f"{runs[1]}: expected the task of {runs[0]}, 'entity', got 'relation': compare" in error


def test_loop_counts_once_for_the_degree() -> None:
    train, rows = np.array([[0, 0, 0], [1, 0, 1], [1, 0, 2]]), np.array([[0, 0, 1], [1, 0, 1]])
    graph = KnowledgeGraph("loops", ("a", "b", "c"), ("r",), train, rows, rows)
    assert [(group.name, group.rows.tolist()) for group in by_degree(graph, "test")] == [
        ("1", [0]),
        ("2-3", [1]),
    ]


def test_runs_of_two_data_sets_are_rejected(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "other", "--epochs", "1") == 0
    capsys.readouterr()
    assert cli.run(evaluate.main, [runs[0], str(tmp_path / "other")]) == 2
    assert f"expected the data set of {runs[0]}, got family: compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--split", "all"], ["--ties", "best"], ["--by", "head"], ["--backend", "x"]]
)
def test_wrong_flag_values_are_rejected(
    runs: tuple[str, str], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(evaluate.main, [runs[0], *flags]) == 2
    assert f"argument {flags[0]}: invalid choice: '{flags[1]}'" in capsys.readouterr().err
