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
from bench.reproduce import runs
from bench.reproduce.experiments import (
    DATASETS,
    Experiment,
    Row,
    Settings,
    configuration,
    experiments,
    run_settings,
)
from bench.reproduce.runs import Outcome, folder_of, read
from bench.reproduce.tables import Mean, Table, draw
from bench.reproduce.targets import FIGURES_NOTE, PAPER_NOTE, best_and_equal, build, verdict
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
EXPERIMENTS = experiments("distmult")


def outcome(mrr: float, mr: float = 2.0, hits: float = 0.5, **results: Any) -> Outcome:
    test = {"all": {"mrr": mrr, "mr": mr, "hits_at_3": hits, "hits_at_1": 0.25, "hits_at_10": 0.75}}
    return Outcome(Path(f"run-{mrr}"), {"test": test, **results}, 10**6)


def table_of(measure: str, dataset: str, rows: list[Row], made: list[list[Outcome]], **more: Any) -> Table:
    experiment = Experiment("", "T", measure, rows=tuple(rows), **more)
    finished = {(row.label, dataset): found for row, found in zip(rows, made, strict=True)}
    return build(experiment, [dataset], finished)


def records(file: Path) -> dict[str, dict[str, str]]:
    with file.open() as lines:
        return {row["model"]: row for row in csv.DictReader(lines)}


def saved(row: Row, dataset: str = "wn18rr", common: Settings | None = None) -> dict[str, Any]:
    return configuration(row, dataset, 0, common or {}).saved()


def test_rows_of_the_targets_by_model() -> None:
    table_2, rivals, entities = (EXPERIMENTS[name].rows for name in ("table2", "rivals", "entities"))
    assert {row.settings["model"] for row in table_2} == set(MODELS)
    scores = [MODELS[score].label for score in BUILT_IN]
    lines = [f"{kind}{score}" for kind in ("LightCAKE-", "no layers, ") for score in scores]
    assert [row.label for row in rivals] == [*lines, "R-GCN", "CompGCN-like", "A2N-like"]
    made = [saved(row) for row in entities]
    assert {one["task"] for one in made} == {"entity"}
    assert [one["layers"] > 0 for one in made] == [one["model"] == "lightcake" for one in made]
    assert [row.label for row in EXPERIMENTS["layers"].rows] == ["1", "2", "3", "4", "5"]


def test_each_option_row_disables_one_option() -> None:
    base, *others = (saved(row, "nell995") for row in EXPERIMENTS["options"].rows)
    changed = [{name for name in values if values[name] != base[name]} for values in others]
    assert changed == [
        {"relation_bias"}, {"mask_targets"}, set(), {"row_dropout"}, {"unseen_rate"}, {"profile"}, {"links"},
        set(), set(), {"ties"},
    ]  # NELL995 has no input dropout, paths and mixing to switch off  # fmt: skip


def test_only_equal_settings_share_a_folder(tmp_path: Path) -> None:
    def folder(target: str, number: int, seed: int = 0, **common: Any) -> Path:
        row = EXPERIMENTS[target].rows[number]
        return folder_of(configuration(row, "wn18rr", seed, common), tmp_path)

    lightcake = folder("rivals", 0)
    assert lightcake == folder("ablation", 3) == folder("layers", 1) == folder("rivals", 0, data_dir="/x")
    others = [("table2", n) for n in range(len(EXPERIMENTS["table2"].rows))]
    others += [("rivals", n) for n in range(len(EXPERIMENTS["rivals"].rows))]
    others += [("ablation", n) for n in (0, 1, 2, 4, 5, 6, 7, 8)]
    folders = {folder(*one, seed) for one in others for seed in (0, 1)}
    assert len(folders) == 2 * len(others)


def test_only_rivals_have_the_terms() -> None:
    for dataset in (*DATASETS, "family:60", "mine"):
        for row in EXPERIMENTS["table2"].rows:
            config = configuration(row, dataset, 0, {})
            assert (config.profile, config.links, config.mixing) == ("none", False, False)
        for row in EXPERIMENTS["rivals"].rows:
            config = configuration(row, dataset, 0, {})
            assert config.profile != "none", (row.label, dataset)
            assert config.links
    whole = saved(EXPERIMENTS["table2"].rows[-len(BUILT_IN)])
    assert whole.items() >= preset_settings("best", "wn18rr", None, "distmult").items()


def test_searched_settings_apply_to_the_best_preset_and_yield_to_flags() -> None:
    flags = {"profile": "none", "links": False, "mixing": False, "dim": 6}
    rows = {row.label: row for row in EXPERIMENTS["rivals"].rows}
    assert saved(rows["no layers, TransH"])["lr"] == 1e-2
    assert saved(rows["CompGCN-like"]).items() >= {"dim": 64, "paths": True, "lr": 1e-2, "epochs": 8}.items()
    assert saved(rows["A2N-like"], "ddb14")["profile"] == "both"
    for row in rows.values():
        assert saved(row, common=flags).items() >= flags.items()
        for dataset, settings in row.searched.items():
            assert saved(row, dataset).items() >= settings.items()
            assert saved(row, dataset, {"preset": "paper"})["dim"] == 256


def test_settings_of_every_row_are_training_flags() -> None:
    for name, experiment in EXPERIMENTS.items():
        for row in experiment.rows:
            for dataset in ("wn18rr", "nell995"):
                settings = run_settings(row, dataset, 0, {"preset": "best"})
                given = vars(make_parser().parse_args(list(runs.flags(settings))))
                assert given.items() >= settings.items(), (name, row.label)


@pytest.mark.parametrize(
    ("means", "best", "equal"),
    [
        ([Mean(0.9, 0.01), Mean(0.89, 0.001), Mean(0.87, 0.001)], "0", {"1"}),
        ([Mean(0.5, None), Mean(0.9, None), Mean(0.9, None)], "1", set()),
        ([Mean(0.88, 0.02), Mean(0.9, None), Mean(0.89, None)], "1", {"0"}),
        ([Mean(0.875, 0.0), Mean(0.75, 0.0625)], "0", set()),
    ],
)
def test_models_within_two_deviations_of_the_best_are_equal(
    means: list[Mean], best: str, equal: set[str]
) -> None:
    assert best_and_equal({str(n): mean for n, mean in enumerate(means)}) == (best, equal)


@pytest.mark.parametrize(
    ("ours", "deviation", "expected"),
    [(0.95, 0.01, "equal"), (0.97, 0.01, "above"), (0.93, 0.01, "below"), (0.9504, None, "equal")],
)
def test_verdicts(ours: float, deviation: float | None, expected: str) -> None:
    assert verdict(Mean(ours, deviation), 0.95) == expected


def test_rivals_are_in_one_table() -> None:
    def outcomes(*mrr: float) -> list[Outcome]:
        found = [outcome(m, parameters=1234, seconds=60.0) for m in mrr]
        for n, run in enumerate(found):
            run.results["valid"] = {"all": {"mrr": 0.5 + n / 4, "mr": 2.0, "hits_at_3": 0.5}}
        return found

    rows = [Row("ours", {"score": "transe"}), Row("no layers, TransE"), Row("other"), Row("one seed")]
    made = [outcomes(0.75, 0.8125), outcomes(0.5, 0.5), outcomes(0.75, 0.75), outcomes(0.7)]
    table = table_of("rivals", "d", rows, made)
    valid, mr, hits, size = "0.6250 ± 0.1768", "2.000 ± 0.000", "0.5000 ± 0.0000", ["1,234", "60"]
    assert table.rows == [
        ["d", "ours", "2", valid, "**0.7812 ± 0.0442**", mr, hits, "+0.2812", *size],
        ["d", "no layers, TransE", "2", valid, "0.5000 ± 0.0000", mr, hits, "", *size],
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
    made = [[replace(outcome(0.5), history=line) for line in lines] for lines in histories.values()]
    table = table_of("speed", "a$b$", [Row(label) for label in histories], made, figure="over_time")
    assert table.rows == [
        ["a$b$", "ours", "0.8125 ± 0.0884", "7", "4", "4"],
        ["a$b$", "slow", "0.7495 ± 0.0007", "150", "100 (1 of 2)", "125"],
        ["a$b$", "never", "0.3750 ± 0.1768", "1", "never", "never"],
    ]
    assert [record["seconds_to_goal"] for record in table.records] == [4.0, None, None]
    assert [record["seconds_to_near"] for record in table.records] == [4.0, 125.0, None]
    assert table.figure is not None
    three = replace(table.figure, panels=dict.fromkeys(("a$b$", "b", "c"), table.figure.panels["a$b$"]))
    draw("T", three, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_comparison_with_the_paper() -> None:
    rows = [Row("LightCAKE-DistMult", {}, "LightCAKE-DistMult"), Row("own")]
    made = [[outcome(0.5, 2.0, 0.25), outcome(0.75, 4.0, 0.75)], [outcome(0.9)]]
    table = table_of("comparison", "wn18rr", rows, made, wide=True)
    assert table.head == ["model", "wn18rr", "paper", "ours is"]
    assert table.rows == [
        ["LightCAKE-DistMult", "0.6250 ± 0.1768 / 3.000 / 0.5000", "0.955 / 1.134 / 0.988", "below"],
        ["own", "0.9000 / 2.000 / 0.5000", "", ""],
    ]
    assert table.notes == (FIGURES_NOTE, PAPER_NOTE)
    first, second = table.records
    assert first.items() >= {"mrr": 0.625, "seeds": 2, "paper_mrr": 0.955, "ours_is": "below"}.items()
    assert first["mrr_deviation"] == pytest.approx(0.125 * 2**0.5)
    assert second["mrr_deviation"] is None
    other = table_of("comparison", "mine", rows, made, wide=True)
    assert (other.head, other.notes) == (["model", "mine"], (FIGURES_NOTE,))


def test_entity_table_contains_published_results() -> None:
    made = [[outcome(0.4), outcome(0.5)], [outcome(0.25)]]
    table = table_of("entities", "wn18rr", [Row("DistMult"), Row("other")], made, wide=True)
    assert [list(row)[2:] for row in table.rows] == [["0.2500 / 0.7500", "0.452"], ["0.2500 / 0.7500", ""]]
    assert [record["published_mrr"] for record in table.records] == [0.452, None]


def test_table_as_markdown_and_csv() -> None:
    table = Table(
        "T", ["a", "b"], [["1,5", "x"]], ["a note"], [{"a": "1,5", "b": 2.5}, {"a": "x", "c": None}]
    )
    assert table.markdown() == "## T\n\n| a | b |\n| --- | --- |\n| 1,5 | x |\n\na note\n"
    assert table.csv() == 'a,b,c\n"1,5",2.5,\nx,,\n'


def test_figure_shows_deviation_over_seeds(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    experiment = EXPERIMENTS["layers"]
    finished = {(row.label, "a$b$_{"): [outcome(0.5), outcome(0.75)] for row in experiment.rows}
    figure = build(experiment, ["a$b$_{"], finished).figure
    assert figure is not None
    assert figure.axes == ("layers", "test MRR, mean and deviation of 2 seeds")
    label, mean, deviation = figure.panels[experiment.title]["a$b$_{"][0][0]
    assert (label, mean) == ("1", 0.625)
    assert deviation == pytest.approx(0.125 * 2**0.5)
    draw("T", figure, tmp_path / "figure.png")  # the name of the data set is not a formula
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def without_date(text: str) -> str:
    changed, count = re.subn(r"Made on \d{4}-\d\d-\d\d by `python", "Made by `python", text)
    assert count == 1
    return changed


def test_targets_share_runs_and_second_call_trains_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["table1", "speed", "--out", str(tmp_path), *TINY]
    assert cli.run(command.main, argv) == 0
    assert "run 3 of 3" in capfd.readouterr().out  # LightCAKE, R-GCN, DistMult
    files = {f"{name}.{kind}" for name in ("table1", "speed") for kind in ("md", "csv")}
    assert {file.name for file in tmp_path.iterdir()} == files | {"speed.png", "report.md", "runs"}
    finished = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/results.json")]
    rows = records(tmp_path / "speed.csv")
    assert {float(row["valid_mrr"]) for row in rows.values()} == {r["valid"]["all"]["mrr"] for r in finished}
    whole = rows["LightCAKE-DistMult"]
    assert whole["seconds_to_goal"] == whole["seconds_to_near"] == whole["seconds"]  # one epoch

    def refuse(*arguments: object) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(runs, "call", refuse)
    before = without_date((tmp_path / "speed.md").read_text())
    assert cli.run(command.main, argv) == 0
    assert without_date((tmp_path / "speed.md").read_text()) == before
    (tmp_path / "runs").rename(tmp_path / "mine")
    for n, folder in enumerate(sorted((tmp_path / "mine").glob("family*"))):
        folder.rename(folder.with_name(f"run {n}"))
    (tmp_path / "mine" / "notes").mkdir()
    for name in ("results.json", "config.json"):
        (tmp_path / "mine" / "notes" / name).write_text("{}")
    elsewhere = ["speed", "--out", str(tmp_path), "--runs", str(tmp_path / "mine"), *TINY]
    assert cli.run(command.main, elsewhere) == 0


def test_user_data_is_reused_and_changed_data_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(load_dataset("family:60"), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    flags = ["--dim", "4", "--epochs", "1", "--batch-size", "512"]
    argv = ["entities", "--out", "out", "--datasets", "mine", "--finished", "--runs", "runs", "--", *flags]
    assert cli.run(train, [*flags, "--dataset", "mine", "--task", "entity", "--model", "complex"]) == 0
    assert cli.run(command.main, argv) == 0
    assert "| ComplEx |" in (tmp_path / "out" / "entities.md").read_text()
    test = tmp_path / "mine" / "test.tsv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-3]))
    capsys.readouterr()
    assert cli.run(command.main, argv) == 2
    assert "expected a run on the current data of mine, got other data" in capsys.readouterr().err


def test_finished_runs_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = EXPERIMENTS["rivals"].rows[0]
    flags = {"dim": 4, "epochs": 1, "batch_size": 512}
    runs.run(run_settings(first, "family:60", 1, flags), tmp_path / "mine" / "run")
    argv = ["--finished", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "mine"), "--seeds"]
    assert cli.run(command.main, ["rivals", *argv, "0", "1", *TINY]) == 0
    (row,) = records(tmp_path / "out" / "rivals.csv").values()
    assert (row["model"], row["seeds"], row["over_no_layers"]) == (first.label, "1", "")
    assert not (tmp_path / "out" / "runs").exists(), "nothing is trained"
    capsys.readouterr()
    assert cli.run(command.main, ["rivals", *argv, "2", *TINY]) == 2
    message = "expected a finished run with these settings and seeds on each of family:60, got no such row"
    assert message in capsys.readouterr().err
    assert cli.run(command.main, ["efficiency", "entities", *argv, "1", "0", "1", *TINY]) == 0
    assert "left out: entities: no row has a finished run" in capsys.readouterr().out
    assert "1 of LightCAKE-DistMult on family:60" in (tmp_path / "out" / "efficiency.md").read_text()


def test_origin_counts_shared_run_once() -> None:
    shared, other = outcome(0.5, seconds=200.0), outcome(0.6, seconds=1920.0)
    finished = {("both", "wn18rr"): [shared, other], ("as in the preset", "wn18rr"): [shared]}
    device = torch.device("cpu")
    text = command.origin(["layers", "--out", "a b"], device, finished)
    assert "`python -m bench.reproduce layers --out 'a b'`" in text
    assert f" on {device_name(device)} (" in text
    assert text.endswith("; total training time 35 min.")
    assert "training time" not in command.origin(["table1"], device, {})
    durations = [command.in_words(seconds) for seconds in (0.4, 119.0, 130.0, 7199.0, 9000.0)]
    assert durations == ["0 s", "119 s", "2 min", "120 min", "2.5 h"]


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


@pytest.mark.full
def test_quick_targets_are_trained(tmp_path: Path) -> None:
    targets = ["rivals", "ablation", "efficiency", "entities"]
    assert cli.run(command.main, [*targets, "--out", str(tmp_path), *TINY]) == 0
    finished = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/results.json")]
    # rivals and ablation share LightCAKE-DistMult, which does not use paths here, and efficiency adds no run
    assert len(finished) == 15 + 9 - 2 + 6
    assert {run["task"] for run in finished} == {"relation", "entity"}
    hits = {run["test"]["all"]["hits_at_10"] for run in finished}
    assert {float(row["hits_at_10"]) for row in records(tmp_path / "entities.csv").values()} <= hits
    sizes = records(tmp_path / "efficiency.csv")
    # N (60 entities) d + R (19) d + R + 2 d, profile and links; LightCAKE also has rows for the inverses
    entities, relations, dim = 60, 19, 4
    shared = entities * dim + relations + 2 * dim + 3 * 2 * relations * dim + 2 * dim
    assert sizes["no layers, DistMult"]["parameters"] == str(shared + relations * dim)
    # input profile, and the matrices of two layers and tables
    own = 2 * relations * dim + 4 * dim**2
    assert sizes["LightCAKE-DistMult"]["parameters"] == str(shared + 2 * relations * dim + own)
    assert all(int(row["peak_bytes"]) > 50e6 for row in sizes.values())
    timed = {name for name, row in sizes.items() if row["layer_seconds"]}
    assert timed == sizes.keys() - {"no layers, DistMult"}
