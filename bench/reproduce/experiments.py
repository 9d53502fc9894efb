"""The targets of `experiments.toml`: rows of settings, with one run per data set and seed."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.models import MODELS
from lightcake_fast.scores import BUILT_IN
from lightcake_fast.training.config import TrainingConfig, dataset_key
from lightcake_fast.training.presets import preset_settings, resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = Mapping[str, Any]

DATASETS = ("fb15k-237", "wn18rr", "nell995", "ddb14")
TERMS: Settings = {"profile": "score", "links": True}
NO_TERMS: Settings = {"profile": "none", "links": False, "paths": False, "mixing": False}
QUICK: Settings = {"dim": 16, "epochs": 3, "batch_size": 256}
QUICK_DATASETS = ("family:200",)
_TEXT = Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8")
DATA: Mapping[str, Any] = tomllib.loads(_TEXT)


@dataclass(frozen=True)
class Row:
    """A row of a table. Its settings apply to every data set and seed.

    Attributes:
        label: Its name in the table.
        settings: Values by field of `TrainingConfig`; the preset sets the others.
        published: Its name in the paper's table 2, if it can be in it.
        base: Settings that the common settings override.
        searched: Settings that override `base`, by the name of a public data set, for the preset "best".
    """

    label: str
    settings: Settings = field(default_factory=dict)
    published: str = ""
    base: Settings = field(default_factory=dict)
    searched: Mapping[str, Settings] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table, and the runs that it needs.

    Attributes:
        about: One line for the help text.
        title: Title of the table.
        measure: Name of the function in `targets.py` that computes the cells.
        varies: Name of the property in which the rows differ.
        rows: Its rows; empty if the table needs no runs.
        wide: Whether data sets are columns; else each row has one line per data set.
        figure: Name of the function in `targets.py` that computes the figure; empty without a figure.
        notes: Lines below the table.
    """

    about: str
    title: str
    measure: str
    varies: str = "model"
    rows: tuple[Row, ...] = ()
    wide: bool = False
    figure: str = ""
    notes: tuple[str, ...] = ()


def experiments(score: str) -> dict[str, Experiment]:
    """Return the experiments by target. The ablations of LightCAKE use the given score."""
    found = {}
    for name, entry in tomllib.loads(_TEXT.replace("$score", score))["targets"].items():
        shared, rows = entry.pop("settings", {}), entry.pop("rows", [])
        entry["rows"] = tuple(row for one in rows for row in _rows(one, shared))
        found[name] = Experiment(**entry | {"notes": tuple(entry.get("notes", ()))})
    return found


def _rows(entry: Mapping[str, Any], shared: Settings) -> Iterator[Row]:
    if "kind" not in entry:
        yield Row(entry["label"], {**shared, **entry.get("settings", {})})
        return
    kind, named = (
        entry["kind"],
        {"scores": BUILT_IN, "models": [name for name in MODELS if name != "lightcake"]},
    )
    for name in named.get(entry["of"], []) if isinstance(entry["of"], str) else entry["of"]:
        label = MODELS[name].label
        if kind in ("plain", "rival"):
            settings = {**shared, "model": name}
            base, searched = (TERMS, searched_settings(name)) if kind == "rival" else ({}, {})
            yield Row(entry.get("prefix", "") + label, settings, label, base, searched)
        else:
            label = f"{MODELS['lightcake'].label}-{label}"
            settings = {**shared, "model": "lightcake", "score": name}
            base, searched = (NO_TERMS, without_terms(name)) if kind == "bare" else ({}, {})
            yield Row(label, settings, label, base, searched)


def searched_settings(model: str) -> dict[str, Settings]:
    """Return the searched settings of a rival by data set."""
    every = DATA["searched"]["scores" if model in BUILT_IN else "networks"]
    own = DATA["searched"].get(model, {})
    return {name: {**every.get(name, {}), **own.get(name, {})} for name in DATASETS}


def without_terms(score: str) -> dict[str, Settings]:
    """Return the presets of a LightCAKE score without the rules that only LightCAKE has, by data set."""
    found: dict[str, Settings] = {}
    for key in ("family", *PUBLIC_DATASETS):
        whole, base = (preset_settings("best", key, model, score) for model in ("lightcake", None))
        found[key] = {name: base[name] for name, value in whole.items() if base[name] != value}
    return found


def run_settings(row: Row, dataset: str, seed: int, common: Settings) -> dict[str, Any]:
    """Return the settings of one run of a row. The row's settings override the common ones."""
    best = common.get("preset", "best") == "best"
    searched = row.searched.get(dataset_key(dataset) or "", {}) if best else {}
    return {"dataset": dataset, "seed": seed, **row.base, **searched, **common, **row.settings}


def configuration(
    row: Row, dataset: str, seed: int, common: Settings, triples: int | None = None
) -> TrainingConfig:
    """Return the configuration of one run of a row, as saved in its folder.

    ``triples`` is the number of training triples of a data set that is not public.

    Raises:
        InputError: A value is wrong, or the row's model does not have the setting.
    """
    return resolve(run_settings(row, dataset, seed, common), triples).anchored()
