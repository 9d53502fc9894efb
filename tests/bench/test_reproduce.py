"""The command that reproduces the paper's tables: its trainings, output, reuse and errors."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.reproduce import __main__ as command
from bench.reproduce import paper, runs, targets
from bench.reproduce.experiments import (
    SEARCHED,
    Experiment,
    Row,
    configuration,
    experiments,
    run_settings,
)
from bench.reproduce.runs import Outcome, folder_of, read
from bench.reproduce.tables import (
    Cell,
    Mean,
    Table,
    best_and_equal,
    draw,
    mean_scores,
    score_cells,
    score_record,
    verdict,
)
from bench.reproduce.targets import FIGURES_NOTE, PAPER_NOTE, comparison, with_curves
from lightcake_fast import cli
from lightcake_fast.data import load_dataset, write_folder
from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS
from lightcake_fast.scores import BUILT_IN
from lightcake_fast.train import main as train
from lightcake_fast.train import make_parser
from lightcake_fast.training.presets import preset_settings
from lightcake_fast.training.runtime import device_name

TINY = ["--datasets", "family:60", "--", "--dim", "4", "--epochs", "1", "--batch-size", "512"]


def outcome(mrr: float, mr: float = 2.0, hits: float = 0.5, **results: Any) -> Outcome:
    test = {"all": {"mrr": mrr, "mr": mr, "hits_at_3": hits}}
    return Outcome(Path(f"run-{mrr}"), {"test": test, **results}, 10**6)


def test_table_2_has_every_model_and_the_rows_of_the_paper() -> None:
    rows = experiments("distmult")["table2"].rows
    trained = {row.settings["model"] for row in rows}
    assert trained == set(MODELS)
    published = [row.label for row in rows if paper.published(row.label, "wn18rr") is not None]
    assert published == [
        "TransE", "DistMult", "ComplEx", "SimplE", "RotatE", "R-GCN", "LightCAKE-DistMult", "LightCAKE-TransE"
    ]  # fmt: skip


def test_each_option_row_disables_one_option() -> None:
    whole, *others = experiments("distmult")["options"].rows
    base = configuration(whole, "nell995", 0, {}).saved()
    changed = []
    for row in others:
        values = configuration(row, "nell995", 0, {}).saved()
        changed.append({name for name in values if values[name] != base[name]})
    assert changed == [
        {"relation_bias"}, {"mask_targets"}, set(), {"row_dropout"}, {"unseen_rate"}, {"profile"}, {"links"},
        set(), set(), {"ties"},
    ]  # NELL995 has no input dropout, paths and mixing to switch off  # fmt: skip


def test_only_equal_settings_share_a_folder(tmp_path: Path) -> None:
    table = {name: e.rows for name, e in experiments("distmult").items()}
    lightcake = folder_of(configuration(table["rivals"][0], "wn18rr", 0, {}), tmp_path)
    assert lightcake == folder_of(configuration(table["ablation"][3], "wn18rr", 0, {}), tmp_path)
    assert lightcake == folder_of(configuration(table["layers"][1], "wn18rr", 0, {}), tmp_path)
    assert lightcake == folder_of(
        configuration(table["rivals"][0], "wn18rr", 0, {"data_dir": "/x"}), tmp_path
    )
    others = [
        configuration(row, "wn18rr", seed, {})
        for rows in (table["table2"], table["rivals"], table["ablation"][:3], table["ablation"][4:])
        for row in rows
        for seed in (0, 1)
    ]
    folders = {folder_of(config, tmp_path) for config in others}
    assert len(folders) == len(others)


def test_only_rivals_have_the_terms() -> None:
    table = {name: e.rows for name, e in experiments("distmult").items()}
    for dataset in (*paper.DATASETS, "family:60", "mine"):
        for row in table["table2"]:
            config = configuration(row, dataset, 0, {})
            assert (config.profile, config.links, config.mixing) == ("none", False, False)
        for row in table["rivals"]:
            config = configuration(row, dataset, 0, {})
            assert config.profile != "none", (row.label, dataset)
            assert config.links
    whole = configuration(table["table2"][-len(BUILT_IN)], "wn18rr", 0, {}).saved()
    assert whole.items() >= preset_settings("best", "wn18rr", None, "distmult").items()
    flags = {"profile": "none", "links": False, "mixing": False, "dim": 6}
    for row in table["rivals"]:
        assert configuration(row, "wn18rr", 0, flags).saved().items() >= flags.items()


def test_settings_of_every_row_are_training_flags() -> None:
    for name, experiment in experiments("distmult").items():
        for row in experiment.rows:
            for dataset in ("wn18rr", "nell995"):
                settings = run_settings(row, dataset, 0, {"preset": "best"})
                given = vars(make_parser().parse_args(list(runs._flags(settings))))
                assert given.items() >= settings.items(), (name, row.label)


def test_every_rival_has_its_settings() -> None:
    rows = {row.label: row for row in experiments("distmult")["rivals"].rows}
    scores = ("DistMult", "TransE", "ComplEx", "SimplE", "RotatE", "TransH")
    of_scores = [f"{kind}{score}" for kind in ("LightCAKE-", "no layers, ") for score in scores]
    assert list(rows) == [*of_scores, "R-GCN", "CompGCN-like", "A2N-like"]
    assert all(row.without is None or row.without in rows for row in rows.values())
    for model, searched in SEARCHED.items():
        (row,) = (row for row in rows.values() if row.settings["model"] == model)
        for dataset, settings in searched.items():
            assert configuration(row, dataset, 0, {}).saved().items() >= settings.items()
            paper_s = configuration(row, dataset, 0, {"preset": "paper"})
            assert paper_s.dim == 256


@pytest.mark.parametrize(
    ("means", "best", "equal"),
    [
        ([Mean(0.9, 0.01), Mean(0.89, 0.001), Mean(0.87, 0.001)], 0, {1}),
        ([Mean(0.5, None), Mean(0.9, None), Mean(0.9, None)], 1, set()),
        ([Mean(0.88, 0.02), Mean(0.9, None), Mean(0.89, None)], 1, {0}),
        ([Mean(0.875, 0.0), Mean(0.75, 0.0625)], 0, set()),
    ],
)
def test_models_within_two_deviations_of_the_best_are_equal(
    means: list[Mean], best: int, equal: set[int]
) -> None:
    assert best_and_equal(means) == (best, equal)


def test_rivals_are_in_one_table() -> None:
    def outcomes(*mrr: float) -> list[Outcome]:
        found = [outcome(m, parameters=1234, seconds=60.0) for m in mrr]
        for n, run in enumerate(found):
            run.results["valid"] = {"all": {"mrr": 0.5 + n / 4, "mr": 2.0, "hits_at_3": 0.5}}
        return found

    experiment = Experiment(
        "T", "model", (Row("ours", without="plain"), Row("plain"), Row("other"), Row("one seed"))
    )
    made = {
        "ours": outcomes(0.75, 0.8125),
        "plain": outcomes(0.5, 0.5),
        "other": outcomes(0.75, 0.75),
        "one seed": outcomes(0.7),
    }
    table = targets.rivals(experiment, ["d"], {(label, "d"): runs for label, runs in made.items()})
    valid, mr, hits = "0.6250 ± 0.1768", "2.000 ± 0.000", "0.5000 ± 0.0000"
    size = ["1,234", "60"]
    assert table.rows == [
        ["d", "ours", "2", valid, "**0.7812 ± 0.0442**", mr, hits, "+0.2812", *size],
        ["d", "plain", "2", valid, "0.5000 ± 0.0000", mr, hits, "", *size],
        ["d", "other", "2", valid, "0.7500 ± 0.0000 =", mr, hits, "", *size],
        ["d", "one seed", "1", "0.5000", "0.7000 =", "2.000", "0.5000", "", *size],
    ]
    assert [record["standing"] for record in table.records] == ["best", "below", "equal", "equal"]
    assert table.records[0]["over_no_layers"] == 0.28125
    assert table.records[3]["test_mrr_deviation"] is None


def test_seconds_to_the_mrr_of_the_first_row(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    histories: dict[str, list[Any]] = {
        "ours": [((2.0, 0.25), (4.0, 0.75), (6.0, 0.5)), ((4.0, 0.75), (8.0, 0.875))],
        "slow": [((50.0, 0.7485), (100.0, 0.75)), ((50.0, 0.5), (200.0, 0.749))],
        "never": [((1.0, 0.5),), ((1.0, 0.25),)],
    }
    finished = {
        (label, "a$b$"): [replace(outcome(0.5), history=line) for line in lines]
        for label, lines in histories.items()
    }
    experiment = Experiment("T", "model", tuple(Row(label) for label in histories))
    table = targets.speed(experiment, ["a$b$"], finished)
    assert table.rows == [
        ["a$b$", "ours", "0.8125 ± 0.0884", "7", "4", "4"],
        ["a$b$", "slow", "0.7495 ± 0.0007", "150", "100 (1 of 2)", "125"],
        ["a$b$", "never", "0.3750 ± 0.1768", "1", "never", "never"],
    ]
    assert [record["seconds_to_goal"] for record in table.records] == [4.0, None, None]
    assert [record["seconds_to_near"] for record in table.records] == [4.0, 125.0, None]
    three = dict.fromkeys(("a$b$", "b", "c"), table.panels["a$b$"])
    draw(replace(table, panels=three), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_mean_and_deviation_over_seeds() -> None:
    means, deviation = mean_scores([outcome(0.5, 2.0, 0.25), outcome(0.75, 4.0, 0.75)])
    assert means == (0.625, 3.0, 0.5)
    assert deviation == pytest.approx(0.125 * 2**0.5)


@pytest.mark.parametrize(
    ("ours", "deviation", "expected"),
    [(0.95, 0.01, "equal"), (0.97, 0.01, "above"), (0.93, 0.01, "below"), (0.9504, 5e-4, "equal")],
)
def test_verdicts(ours: float, deviation: float, expected: str) -> None:
    assert verdict(ours, deviation, 0.95) == expected


def test_cells_of_a_row() -> None:
    theirs = paper.published("LightCAKE-DistMult", "wn18rr")
    assert score_cells([outcome(0.9)], theirs) == [
        "0.9000 / 2.000 / 0.5000",
        "0.955 / 1.134 / 0.988",
        "below",
    ]
    assert score_cells([outcome(0.9), outcome(0.8)], None) == ["0.8500 ± 0.0707 / 2.000 / 0.5000", "", ""]


def test_paper_is_mentioned_only_where_it_has_results() -> None:
    experiment = Experiment("T", "model", (Row("DistMult", {}, "DistMult"), Row("own")))
    finished = {(row.label, data): [outcome(0.9)] for row in experiment.rows for data in ("ddb14", "mine")}
    assert comparison(experiment, ["ddb14"], finished).notes == [FIGURES_NOTE, PAPER_NOTE]
    assert comparison(experiment, ["mine"], finished).notes == [FIGURES_NOTE]


def test_table_as_markdown_and_csv() -> None:
    records: list[dict[str, Cell]] = [{"a": "1,5", "b": 2.5}, {"a": "x", "c": None}]
    table = Table("T", ["a", "b"], [["1,5", "x"]], ["a note"], records)
    assert table.markdown() == "## T\n\n| a | b |\n| --- | --- |\n| 1,5 | x |\n\na note\n"
    assert table.csv() == 'a,b,c\n"1,5",2.5,\nx,,\n'


def test_record_has_one_number_per_cell() -> None:
    theirs = paper.published("LightCAKE-DistMult", "wn18rr")
    record = score_record([outcome(0.5, 2.0, 0.25), outcome(0.75, 4.0, 0.75)], theirs)
    deviation = record.pop("mrr_deviation")
    assert deviation == pytest.approx(0.125 * 2**0.5)
    assert record == {
        "mrr": 0.625,
        "mr": 3.0,
        "hits_at_3": 0.5,
        "seeds": 2,
        "paper_mrr": 0.955,
        "paper_mr": 1.134,
        "paper_hits_at_3": 0.988,
        "ours_is": "below",
    }
    assert score_record([outcome(0.5)], None)["mrr_deviation"] is None


def test_figure_shows_deviation_over_seeds(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    experiment = experiments("distmult")["layers"]
    runs_of = {row.label: [outcome(0.5), outcome(0.75)] for row in experiment.rows}
    finished = {(label, "mine"): outcomes for label, outcomes in runs_of.items()}
    table = with_curves(experiment, ["mine"], finished)
    assert table.axes == ("layers", "test MRR, mean and deviation of 2 seeds")
    layers, mean, deviation = table.curves["mine"][0]
    assert (layers, mean) == ("1", 0.625)
    assert deviation == pytest.approx(0.125 * 2**0.5)
    draw(replace(table, curves={"a$b$_{": table.curves["mine"]}), tmp_path / "figure.png")  # no formula
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    one = {cell: outcomes[:1] for cell, outcomes in finished.items()}
    assert with_curves(experiment, ["mine"], one).axes == ("layers", "test MRR")


def test_targets_share_runs_and_second_call_trains_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["table1", "speed", "--out", str(tmp_path), *TINY]
    assert cli.run(command.main, argv) == 0
    printed = capfd.readouterr().out
    assert "run 3 of 3" in printed  # LightCAKE, R-GCN, DistMult
    names = {"table1", "speed"}
    files = {f"{name}.{kind}" for name in names for kind in ("md", "csv")}
    assert {file.name for file in tmp_path.iterdir()} == files | {"speed.png", "report.md", "runs"}
    with (tmp_path / "speed.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    finished = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/results.json")]
    assert {float(row["valid_mrr"]) for row in rows.values()} == {
        run["valid"]["all"]["mrr"] for run in finished
    }
    whole = rows["LightCAKE-DistMult"]
    assert whole["seconds_to_goal"] == whole["seconds_to_near"] == whole["seconds"]  # one epoch
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")

    def refuse(*arguments: object) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(runs, "_call", refuse)
    before = without_date((tmp_path / "speed.md").read_text())
    assert cli.run(command.main, argv) == 0
    assert without_date((tmp_path / "speed.md").read_text()) == before
    (tmp_path / "runs").rename(tmp_path / "mine")
    (tmp_path / "mine" / "notes").mkdir()
    for n, folder in enumerate(sorted((tmp_path / "mine").glob("family*"))):
        folder.rename(folder.with_name(f"run {n}"))
    (tmp_path / "mine" / "notes" / "results.json").write_text("{}")
    (tmp_path / "mine" / "notes" / "config.json").write_text("{}")
    elsewhere = ["speed", "--out", str(tmp_path), "--runs", str(tmp_path / "mine"), *TINY]
    assert cli.run(command.main, elsewhere) == 0


def test_user_data_is_reused_and_changed_data_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(load_dataset("family:60"), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    flags = ["--dim", "4", "--epochs", "1", "--batch-size", "512"]
    argv = ["entities", "--out", "out", "--datasets", "mine"]
    assert cli.run(train, [*flags, "--dataset", "mine", "--task", "entity", "--model", "complex"]) == 0
    assert cli.run(command.main, [*argv, "--finished", "--runs", "runs", "--", *flags]) == 0
    assert "| ComplEx |" in (tmp_path / "out" / "entities.md").read_text()
    test = tmp_path / "mine" / "test.tsv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-3]))
    capsys.readouterr()
    assert cli.run(command.main, [*argv, "--finished", "--runs", "runs", "--", *flags]) == 2
    assert "expected a run on the current data of mine, got other data" in capsys.readouterr().err


@pytest.mark.full
def test_efficiency_table_shows_sizes_and_times(tmp_path: Path) -> None:
    assert cli.run(command.main, ["efficiency", "--out", str(tmp_path), *TINY]) == 0
    with (tmp_path / "efficiency.csv").open() as file:
        sizes = {row["model"]: row for row in csv.DictReader(file)}
    # N (60 entities) d + R (19) d + R + 2 d, profile and links; LightCAKE also has rows for the inverses
    entities, relations, dim = 60, 19, 4
    shared = entities * dim + relations + 2 * dim + 3 * 2 * relations * dim + 2 * dim
    assert sizes["no layers, DistMult"]["parameters"] == str(shared + relations * dim)
    # input profile, and the matrices of two layers and tables
    own = 2 * relations * dim + 4 * dim**2
    assert sizes["LightCAKE-DistMult"]["parameters"] == str(shared + 2 * relations * dim + own)
    assert all(int(row["peak_bytes"]) > 50e6 for row in sizes.values())
    assert {name for name, row in sizes.items() if row["layer_seconds"]} == sizes.keys() - {
        "no layers, DistMult"
    }
    assert {"LightCAKE-ComplEx", "LightCAKE-SimplE", "LightCAKE-RotatE", "R-GCN"} < sizes.keys()


def without_date(text: str) -> str:
    """Return the text of a table that was made on another day."""
    changed, count = re.subn(r"Made on \d{4}-\d\d-\d\d by `python", "Made by `python", text)
    assert count == 1
    return changed


def test_origin_counts_shared_run_once() -> None:
    shared, other = outcome(0.5, seconds=200.0), outcome(0.6, seconds=1920.0)
    finished = {("both", "wn18rr"): [shared, other], ("as in the preset", "wn18rr"): [shared]}
    argv, device = ["layers", "--out", "a b"], torch.device("cpu")
    origin = command._origin(argv, device, finished)
    assert "`python -m bench.reproduce layers --out 'a b'`" in origin
    assert f" on {device_name(device)} (" in origin
    assert origin.endswith("; total training time 35 min.")
    assert "training time" not in command._origin(["table1"], device, {})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119.0, "119 s"), (130.0, "2 min"), (7199.0, "120 min"), (9000.0, "2.5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert command._in_words(seconds) == words


def test_history_counts_only_training_time(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    line = json.dumps({"seconds": 2.0, "valid": {"all": {"mrr": 0.5}}})
    (tmp_path / "metrics.jsonl").write_text("\n".join([line] * 3))
    assert read(tmp_path).history == ((2.0, 0.5), (4.0, 0.5), (6.0, 0.5))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["table3"], "argument TARGET: invalid choice: 'table3'"),
        ([], "the following arguments are required: TARGET"),
        (["table2", "--", "--seed", "3"], "--seed: not allowed after --"),
        (["table2", "--", "--model", "rgcn"], "--model: not allowed after --"),
        (["table2", "--", "--dim", "0"], "dim: expected an integer of at least 1, got 0"),
        (["table1", "--datasets", "nowhere"], "nowhere"),
    ],
)
def test_wrong_flags_give_one_line(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = argv.index("--") if "--" in argv else len(argv)
    argv = [*argv[:own], "--out", str(tmp_path), *argv[own:]]
    assert cli.run(command.main, argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_failed_run_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["layers", "--out", str(tmp_path), *TINY, "--lr", "2e9"]
    assert cli.run(command.main, argv) == 2
    assert "the training failed, with exit code 2" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_damaged_run_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(InputError, match="expected a finished run, got missing or damaged files"):
        read(tmp_path)


def test_finished_runs_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = experiments("distmult")["rivals"].rows[0]
    flags = {"dim": 4, "epochs": 1, "batch_size": 512}
    runs.run(run_settings(first, "family:60", 1, flags), tmp_path / "mine" / "run", silent=True)
    argv = ["rivals", "--finished", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "mine")]
    assert cli.run(command.main, [*argv, "--seeds", "0", "1", *TINY]) == 0
    with (tmp_path / "out" / "rivals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["seeds"], row["over_no_layers"]) for row in rows] == [(first.label, "1", "")]
    assert not (tmp_path / "out" / "runs").exists(), "nothing is trained"
    capsys.readouterr()
    assert cli.run(command.main, [*argv, "--seeds", "2", *TINY]) == 2
    message = (
        "--finished: expected a finished run with these settings and seeds on each of family:60, got no such"
    )
    assert message in capsys.readouterr().err
    argv = ["efficiency", "entities", *argv[1:]]
    assert cli.run(command.main, [*argv, "--seeds", "1", "0", "1", *TINY]) == 0
    assert "left out: entities: no row has a finished run" in capsys.readouterr().out
    assert "1 of LightCAKE-DistMult on family:60" in (tmp_path / "out" / "efficiency.md").read_text()


@pytest.mark.full
def test_rivals_and_ablation_are_trained(tmp_path: Path) -> None:
    argv = ["rivals", "ablation", "--out", str(tmp_path), "--quick", "--datasets", "family:60"]
    assert cli.run(command.main, argv) == 0
    finished = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/results.json")]
    measured = {run["test"]["all"]["mrr"] for run in finished}
    for name, mrr, labels in (("rivals", "test_mrr", 15), ("ablation", "mrr", 9)):
        with (tmp_path / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == labels
        assert {float(row[mrr]) for row in rows} <= measured
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert len(finished) == 15 + 9 - 2  # both contain LightCAKE-DistMult, which does not use paths here


@pytest.mark.full
def test_entities_are_trained_with_and_without_context(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(command.main, ["entities", "--out", str(tmp_path), *TINY]) == 0
    with (tmp_path / "entities.csv").open() as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert {"DistMult", "LightCAKE-DistMult", "ComplEx", "LightCAKE-ComplEx", "RotatE"} <= rows.keys()
    finished = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/results.json")]
    assert {run["task"] for run in finished} == {"entity"}
    measured = {run["test"]["all"]["hits_at_10"] for run in finished}
    assert {float(row["hits_at_10"]) for row in rows.values()} <= measured


def test_entity_table_contains_published_results() -> None:
    made = {("DistMult", "wn18rr"): [outcome(0.4), outcome(0.5)], ("other", "wn18rr"): [outcome(0.25)]}
    for run in (run for several in made.values() for run in several):
        run.results["test"]["all"] |= {"hits_at_1": 0.25, "hits_at_10": 0.75}
    experiment = Experiment("", "model", (Row("DistMult"), Row("other")))
    table = targets.entities(experiment, ["wn18rr"], made)
    assert [list(row)[2:] for row in table.rows] == [["0.2500 / 0.7500", "0.452"], ["0.2500 / 0.7500", ""]]
    assert [record["published_mrr"] for record in table.records] == [0.452, None]


def test_entity_target_has_each_score_with_and_without_context() -> None:
    rows = [configuration(row, "wn18rr", 0, {}) for row in experiments("transe")["entities"].rows]
    assert {config.task for config in rows} == {"entity"}
    scores = [(config.model, config.score) for config in rows if config.model == "lightcake"]
    assert ("lightcake", "distmult") in scores
    assert ("lightcake", "complex") in scores
    assert [config.layers > 0 for config in rows] == [config.model == "lightcake" for config in rows]
