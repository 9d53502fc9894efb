import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS, ModelSpec
from lightcake_fast.scores import BUILT_IN
from lightcake_fast.training import presets
from lightcake_fast.training.arguments import add_flags, read_settings, resumed
from lightcake_fast.training.config import PRESETS, TASKS, TrainingConfig, fields
from lightcake_fast.training.experiment import build_model
from lightcake_fast.training.flags import GROUPS
from lightcake_fast.training.presets import preset_settings, preset_title, resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXED_ON_RESUME = [
    "preset",
    "model",
    "score",
    "decomposition",
    "bases",
    "context",
    "rows",
    "layers",
    "dim",
    "relation_bias",
    "batch_size",
]
FIXED_ON_RESUME += [
    "lr",
    "lr_decay",
    "l2",
    "seed",
    "input_dropout",
    "row_dropout",
    "unseen_rate",
    "mask_targets",
    "ties",
]


def parsed(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(argv))


def test_paper_preset_has_the_settings_of_the_paper() -> None:
    config = resolve({"preset": "paper", "dataset": "ddb14"})
    assert (config.dim, config.layers, config.batch_size, config.epochs) == (256, 4, 512, 20)
    assert (config.lr, config.l2) == (5e-3, 1e-7)
    assert (config.input_dropout, config.row_dropout, config.unseen_rate) == (0, 0, 0)
    assert not config.relation_bias
    assert not config.mask_targets


@pytest.mark.parametrize("score", ["distmult", "transe"])
@pytest.mark.parametrize("dataset", ["family", "fb15k-237", "wn18rr", "nell995", "ddb14"])
def test_best_preset_is_valid_for_every_data_set(dataset: str, score: str) -> None:
    config = resolve({"dataset": dataset, "score": score})
    assert config.preset == "best"
    row = preset_settings("best", dataset, "lightcake", score)
    assert row != preset_settings("best", "some/folder", "lightcake", score)
    assert config.saved().items() >= row.items()


@pytest.mark.parametrize("dataset", ["family", "wn18rr", "some/folder"])
def test_score_without_preset_uses_distmult_preset(dataset: str) -> None:
    settings = resolve({"dataset": dataset, "score": "complex"}).saved()
    assert settings == {**resolve({"dataset": dataset}).saved(), "score": "complex"}


def test_some_scores_have_their_presets() -> None:
    assert resolve({"dataset": "ddb14", "score": "simple"}).lr == 1e-2
    rotate = resolve({"dataset": "nell995", "score": "rotate"})
    assert (rotate.lr, rotate.row_dropout, rotate.profile, rotate.links) == (1e-2, 0.8, "score", True)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lightcake"])
@pytest.mark.parametrize("dataset", ["family", "wn18rr", "some/folder"])
def test_baselines_have_no_terms_by_default(name: str, dataset: str) -> None:
    config = resolve({"dataset": dataset, "model": name})
    assert (config.profile, config.links, config.mixing) == ("none", False, False)
    assert resolve({"dataset": dataset, "model": name, "profile": "score"}).profile == "score"


def test_profile_without_layers_is_at_the_score() -> None:
    assert resolve({"dataset": "wn18rr"}).profile == "both"
    assert resolve({"dataset": "wn18rr", "layers": 0}).profile == "score"
    assert resolve({"dataset": "wn18rr", "layers": 0, "profile": "both"}).profile == "both"  # rejected later


def test_mixing_is_off_without_layers() -> None:
    assert resolve({"dataset": "wn18rr"}).mixing
    assert not resolve({"dataset": "wn18rr", "layers": 0}).mixing
    config = resolve({"dataset": "wn18rr", "layers": 0, "mixing": True})
    with pytest.raises(InputError, match="mixing: expected at least one layer, got layers=0"):
        build_model(config, 5, 2)


def test_presets_set_all_fields_without_default() -> None:
    needed = {field.name for field, _, _ in fields() if field.default is dataclasses.MISSING}
    named = frozenset(needed | {"weight_average", "paths"})  # their defaults open older run folders
    pairs = [("paper", "family"), ("best", "family"), ("best", "some/folder"), ("best", "wn18rr")]
    assert {frozenset(preset_settings(*pair, None, "distmult")) for pair in pairs} == {named}


@pytest.mark.parametrize(
    ("dataset", "key"),
    [("WN18RR", "wn18rr"), ("family:500:3", "family"), ("./wn18rr", "own"), ("some/folder", "own")],
)
def test_best_preset_ignores_case_of_data_set_name(dataset: str, key: str) -> None:
    row = preset_settings("best", key, "lightcake", "distmult")
    assert resolve({"dataset": dataset}).saved().items() >= row.items()


def test_preset_rules_name_known_fields_and_conditions() -> None:
    text = (Path(presets.__file__).parent / "presets.toml").read_text(encoding="utf-8")
    names = {field.name for field, _, _ in fields()}
    conditions = {
        "preset": set(PRESETS),
        "task": set(TASKS),
        "dataset": {"family", "own", *PUBLIC_DATASETS},
        "model": {"no-context", *MODELS},
        "score": {"built-in", *BUILT_IN},
    }
    for rule in tomllib.loads(text)["rule"]:
        when = rule.pop("when")
        assert rule.keys() <= names
        assert when.pop("min_triples", 1) > 0
        for name, value in when.items():
            assert {value} if isinstance(value, str) else set(value) <= conditions[name], (name, value)


@pytest.mark.parametrize("triples", [1, 100, 3000, 20_000, 1_000_000])
def test_user_data_gets_epochs_and_batch_size_by_number_of_triples(triples: int) -> None:
    config = resolve({"dataset": "some/folder"}, triples)
    steps = math.ceil(triples / config.batch_size)
    assert config.epochs * steps >= 2000
    assert config.patience * steps >= 200
    assert steps >= 20 or config.batch_size == 32
    assert preset_title(config) == "settings by the number of triples"
    given = resolve({"dataset": "some/folder", "epochs": 3, "batch_size": 7}, triples)
    assert (given.epochs, given.batch_size) == (3, 7)
    for settings in ({"dataset": "wn18rr"}, {"dataset": "some/folder", "preset": "paper"}):
        assert resolve(settings, triples) == resolve(settings)
        assert preset_title(resolve(settings)).startswith("preset ")


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_flag_overrides_preset(preset: str) -> None:
    flags = parsed("--preset", preset, "--layers", "0", "--relation-bias", "--no-mask-targets", "--lr", "1")
    config = resolve(flags)
    assert (config.layers, config.relation_bias, config.mask_targets, config.lr) == (0, True, False, 1.0)
    assert config.dim == (256 if preset == "paper" else 64)


def test_every_field_is_a_flag_with_help_in_a_group() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = parser.format_help()
    for field, flag, _ in fields():
        assert "--" + field.name.replace("_", "-") in text
        assert flag.help
        assert flag.group in GROUPS


def test_missing_flags_are_not_in_parsed_result() -> None:
    assert parsed() == {}
    assert parsed("--no-relation-bias", "--quiet") == {"relation_bias": False, "quiet": True}


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("dim", 0, "an integer of at least 1"),
        ("dim", 2.5, "an integer of at least 1"),
        ("dim", True, "an integer of at least 1"),
        ("dim", "64", "an integer of at least 1"),
        ("batch_size", 10**19, "an integer of at least 1 and below 2147483648"),
        ("epochs", 10**400, "an integer of at least 1 and below 2147483648"),
        ("layers", 1000, "an integer of at least 0 and below 1000"),
        ("l2", 1e300, "a number of at least 0 and below 2147483648"),
        ("layers", -1, "an integer of at least 0 and below 1000"),
        ("batch_size", 0, "an integer of at least 1"),
        ("epochs", 0, "an integer of at least 1"),
        ("patience", 0, "an integer of at least 1"),
        ("seed", -1, "an integer of at least 0 and below 9223372036854775808"),
        ("seed", 2**63, "an integer of at least 0 and below 9223372036854775808"),
        ("lr", 0.0, "a number above 0"),
        ("lr", float("nan"), "a number above 0"),
        ("lr", float("inf"), "a number above 0 and below 2147483648"),
        ("lr", None, "a number above 0"),
        ("l2", -1e-9, "a number of at least 0"),
        ("input_dropout", 1.0, "a number of at least 0 and below 1"),
        ("row_dropout", -0.1, "a number of at least 0 and below 1"),
        ("unseen_rate", 1.0, "a number of at least 0 and below 1"),
        ("mask_targets", 1, "true or false"),
        ("relation_bias", "yes", "true or false"),
        ("score", "rescal", "one of distmult, transe, complex, simple, rotate, transh, or MODULE:NAME"),
        ("context", "none", "one of both, entity, relation"),
        ("rows", "float16", "one of float32, bfloat16"),
        ("preset", "worst", "one of paper, best"),
        ("ties", "mean", "one of realistic, optimistic, pessimistic, index"),
        ("backend", "cuda", "one of auto, triton, numba, reference"),
        ("dataset", 5, "text"),
        ("data_dir", 5, "text"),
    ],
)
def test_wrong_value_names_field_and_expected_value(field: str, value: Any, wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve({field: value})
    assert str(caught.value) == f"{field}: expected {wanted}, got {value!r}"
    values = {**resolve({}).saved(), field: value}
    with pytest.raises(InputError) as caught:
        TrainingConfig.from_json(json.dumps(values))
    assert str(caught.value).startswith(f"{field}: expected ")


def test_configuration_survives_json_round_trip() -> None:
    config = resolve({"dataset": "nell995", "lr": 0.1 + 0.2, "data_dir": "/data", "seed": 7})
    again = TrainingConfig.from_json(config.to_json())
    assert again == config
    assert again.lr.hex() == config.lr.hex()


def test_old_configuration_gets_default_of_new_setting() -> None:
    values = resolve({"dim": 5}).saved()
    del values["composition"]
    assert TrainingConfig.from_json(json.dumps(values)) == resolve({"dim": 5})


@pytest.mark.parametrize("dataset", ["family", "fb15k-237", "wn18rr", "nell995", "ddb14", "./mine"])
@pytest.mark.parametrize("preset", ["paper", "best"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_settings_in_every_preset(model: str, preset: str, dataset: str) -> None:
    config = resolve({"model": model, "preset": preset, "dataset": dataset})
    has_context = model in ("lightcake", "rgcn", "compgcn", "a2n")
    assert (config.layers > 0) == has_context
    assert has_context or not config.mask_targets
    assert config.title == ("lightcake-distmult" if model == "lightcake" else model)
    build_model(config, 3, 2)  # raises if the width does not fit


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_model_spec_names_known_fields_and_scores(spec: ModelSpec) -> None:
    names = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert names >= {*spec.own}
    assert spec.nearest in {None, *BUILT_IN}


def test_settings_of_one_call_are_not_saved() -> None:
    config = resolve({"out": "here", "quiet": True, "cuda_graph": "off"})
    assert config.saved().keys().isdisjoint({"out", "resume", "quiet", "cuda_graph"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-10], "not JSON: "),
        (lambda text: "[" * 100_000, "not JSON: "),
        (lambda text: "null", "expected a JSON object .*, got a JSON NoneType"),
        (lambda text: text.replace('"seed"', '"out": "/elsewhere", "seed"'), "unknown fields: out"),
        (lambda text: "[1]", "expected a JSON object .*, got a JSON list"),
        (lambda text: text.replace('"dim"', '"width"'), "unknown fields: width"),
        (lambda text: json.dumps({"dim": 3}), "missing fields: batch_size, "),
    ],
)
def test_damaged_json_is_rejected(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingConfig.from_json(change(resolve({}).to_json()))


@pytest.mark.parametrize("field", FIXED_ON_RESUME)
def test_fixed_fields_cannot_change_on_resume(field: str) -> None:
    config = resolve({})
    flag = "--" + field.replace("_", "-")
    with pytest.raises(InputError, match=f"^--resume: expected only .*, got {flag}: omit it"):
        resumed(config, {"resume": "folder", field: getattr(config, field)})


def test_other_fields_can_change_on_resume() -> None:
    changes: dict[str, Any] = {
        "dataset": "/mine",
        "data_dir": "/data",
        "device": "cpu",
        "quiet": True,
        "backend": "numba",
    }
    changes |= {"epochs": 99, "patience": 98, "cuda_graph": "off"}
    config = resumed(resolve({}), {"resume": "folder", **changes})
    assert dataclasses.asdict(config).items() >= changes.items()
    assert config.fixed() == resolve({}).fixed()


def test_paths_become_absolute_and_names_do_not_change(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve({"dataset": "mine/graph", "data_dir": "data"}).anchored()
    assert config.dataset == str(tmp_path / "mine" / "graph")
    assert config.data_dir == str(tmp_path / "data")
    assert resolve({"dataset": "WN18RR"}).anchored().dataset == "WN18RR"
    assert resolve({"dataset": "family:50"}).anchored().dataset == "family:50"


def test_configuration_of_older_version_trains_the_same(tmp_path: Path) -> None:
    config = resolve({"dataset": "wn18rr", "paths": False, "weight_average": 0.0})
    older = {name: v for name, v in config.saved().items() if name not in ("paths", "weight_average")}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert resolve(read_settings(tmp_path / "config.json")) == config
    (tmp_path / "few.json").write_text(json.dumps({"dataset": "wn18rr"}))
    assert resolve(read_settings(tmp_path / "few.json")).paths


@pytest.mark.parametrize("flags", [{"model": "complex"}, {"score": "complex", "layers": 0}], ids=str)
@pytest.mark.parametrize("task", ["relation", "entity"])
def test_small_data_gets_many_epochs_for_every_model(flags: dict[str, Any], task: str) -> None:
    epochs = [resolve({"dataset": "of/mine", "task": task, **flags}, count).epochs for count in (10, 1000)]
    assert epochs == [2000, 63]
