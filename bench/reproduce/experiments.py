"""The runs of each target: rows of settings, with one column per data set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.models import MODELS
from lightcake_fast.scores import BUILT_IN
from lightcake_fast.training.config import TrainingConfig, dataset_key
from lightcake_fast.training.presets import preset_settings, resolve

Settings = Mapping[str, Any]

TERMS: Settings = {"profile": "score", "links": True}
NO_TERMS: Settings = {"profile": "none", "links": False, "paths": False, "mixing": False}

_WN18RR: Settings = {"profile": "both", "paths": True, "dim": 64, "row_dropout": 0.8, "epochs": 8}
_NELL995: Settings = {"row_dropout": 0.9, "weight_average": 0.99}
_FB15K_237: Settings = {"paths": True, "epochs": 8, "lr_decay": 0.3}

_WITHOUT_LAYERS: dict[str, Settings] = {
    "ddb14": {"dim": 128},
    "wn18rr": {"paths": True, "dim": 64},
    "nell995": _NELL995,
    "fb15k-237": {"paths": True, "lr_decay": 0.3, "row_dropout": 0.3},
}

# Changes of `--preset best` for each rival with the terms, chosen on validation, by model and data set.
SEARCHED: dict[str, dict[str, Settings]] = {
    "distmult": _WITHOUT_LAYERS,
    "complex": _WITHOUT_LAYERS,
    "simple": _WITHOUT_LAYERS,
    "rotate": _WITHOUT_LAYERS,
    "transe": _WITHOUT_LAYERS,
    "transh": {**_WITHOUT_LAYERS, "wn18rr": {**_WITHOUT_LAYERS["wn18rr"], "lr": 1e-2}},
    "rgcn": {
        "ddb14": {"row_dropout": 0.3},
        "wn18rr": _WN18RR,
        "nell995": _NELL995,
        "fb15k-237": _FB15K_237,
    },
    "compgcn": {
        "ddb14": {"row_dropout": 0.3},
        "wn18rr": {**_WN18RR, "lr": 1e-2},
        "nell995": _NELL995,
        "fb15k-237": _FB15K_237,
    },
    "a2n": {
        "ddb14": {"profile": "both"},
        "wn18rr": _WN18RR,
        "nell995": _NELL995,
        "fb15k-237": _FB15K_237,
    },
}

MOST_LAYERS = 5
ENTITY_SCORES = ("distmult", "complex", "rotate")
_TERMS_OFF: dict[str, Settings] = {
    "no profile": {"profile": "none"},
    "no links": {"links": False},
    "no paths": {"paths": False},
    "no mixing": {"mixing": False},
}
QUICK: Settings = {"dim": 16, "epochs": 3, "batch_size": 256}
QUICK_DATASETS = ("family:200",)


def without_terms(score: str) -> dict[str, Settings]:
    """Return the presets of a LightCAKE score without the rules that only LightCAKE has, by data set."""
    found: dict[str, Settings] = {}
    for key in ("family", *PUBLIC_DATASETS):
        whole, base = (preset_settings("best", key, model, score) for model in ("lightcake", None))
        found[key] = {name: base[name] for name, value in whole.items() if base[name] != value}
    return found


@dataclass(frozen=True)
class Row:
    """A row of a table. Its settings apply to every data set and seed.

    Attributes:
        label: Its name in the table.
        settings: Values by field of `TrainingConfig`; the preset sets the others.
        published: The model's name in the paper's table 2, if the row is in it.
        base: Settings that the common settings override.
        searched: Settings that override `base`, by the name of a public data set, for the preset "best".
        without: Label of the row that differs only by having no layers.
    """

    label: str
    settings: Settings = field(default_factory=dict)
    published: str | None = None
    base: Settings = field(default_factory=dict)
    searched: Mapping[str, Settings] = field(default_factory=dict)
    without: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A table of trained runs.

    Attributes:
        title: Title of the table.
        varies: Name of the property in which the rows differ.
        rows: Its rows.
    """

    title: str
    varies: str
    rows: tuple[Row, ...]


def _lightcake(score: str, without: str | None = None) -> Row:
    """Build the row of LightCAKE as in its preset, with the terms."""
    label = f"{MODELS['lightcake'].label}-{MODELS[score].label}"
    settings = {"model": "lightcake", "score": score}
    return Row(label, settings, label, without=without)


def _rival(model: str, label: str) -> Row:
    """Build the row of another model with the same terms."""
    return Row(label, {"model": model}, MODELS[model].label, TERMS, SEARCHED.get(model, {}))


def _no_layers(score: str) -> Row:
    """Build the row of a score with the same terms and without layers."""
    return _rival(score, f"no layers, {MODELS[score].label}")


def _table_2() -> Experiment:
    rows = [
        Row(spec.label, {"model": name}, spec.label) for name, spec in MODELS.items() if name != "lightcake"
    ]
    for score in BUILT_IN:
        whole = _lightcake(score)
        rows.append(Row(whole.label, whole.settings, whole.label, NO_TERMS, without_terms(score)))
    return Experiment("Relation prediction by model (the paper's table 2)", "model", tuple(rows))


def _rivals() -> Experiment:
    plain = {score: _no_layers(score) for score in BUILT_IN}
    networks = [_rival(name, MODELS[name].label) for name in ("rgcn", "compgcn", "a2n")]
    ours = [_lightcake(score, plain[score].label) for score in BUILT_IN]
    return Experiment(
        "LightCAKE and its rivals with the same terms", "model", (*ours, *plain.values(), *networks)
    )


def _speed(score: str) -> Experiment:
    rows = (_lightcake(score), _rival("rgcn", "R-GCN"), _no_layers(score))
    return Experiment("Validation MRR by seconds of training", "model", rows)


def _ablation(score: str) -> Experiment:
    contexts: dict[str, Settings] = {"none": {"layers": 0}}
    contexts |= {name: {"context": name} for name in ("relation", "entity", "both")}
    contexts |= {f"both, {label}": settings for label, settings in _TERMS_OFF.items()}
    contexts["both, no terms"] = NO_TERMS
    whole = _lightcake(score)
    rows = tuple(Row(name, {**whole.settings, **settings}) for name, settings in contexts.items())
    return Experiment(f"LightCAKE ({score}) by context and terms", "context", rows)


def _layers(score: str) -> Experiment:
    rows = tuple(Row(str(n), {"score": score, "layers": n}) for n in range(1, MOST_LAYERS + 1))
    return Experiment(f"LightCAKE ({score}) by number of layers", "layers", rows)


def _options(score: str) -> Experiment:
    off: dict[str, Settings] = {
        "as in the preset": {},
        "no relation bias": {"relation_bias": False},
        "targets not masked": {"mask_targets": False},
        "no input dropout": {"input_dropout": 0.0},
        "no row dropout": {"row_dropout": 0.0},
        "no unknown-entity vectors": {"unseen_rate": 0.0},
        **_TERMS_OFF,
        "ties by index": {"ties": "index"},
    }
    rows = tuple(Row(label, {"score": score, **settings}) for label, settings in off.items())
    return Experiment(f"LightCAKE ({score}): each option beyond the paper switched off alone", "option", rows)


def _efficiency() -> Experiment:
    ours = (_lightcake(score) for score in BUILT_IN)
    rows = (_no_layers("distmult"), _rival("rgcn", "R-GCN"), *ours)
    return Experiment("Contexts used, size, speed and memory", "model", rows)


def _entities() -> Experiment:
    rows = []
    for score in ENTITY_SCORES:
        label = MODELS[score].label
        rows.append(Row(label, {"task": "entity", "model": score}, label))
        if score in BUILT_IN:
            settings = {"task": "entity", "model": "lightcake", "score": score}
            rows.append(Row(f"{MODELS['lightcake'].label}-{label}", settings))
    return Experiment("Entity prediction, without context and with it", "model", tuple(rows))


def experiments(score: str) -> dict[str, Experiment]:
    """Return the experiments by target. The ablations of LightCAKE use the given score."""
    return {
        "table2": _table_2(),
        "rivals": _rivals(),
        "ablation": _ablation(score),
        "layers": _layers(score),
        "efficiency": _efficiency(),
        "speed": _speed(score),
        "options": _options(score),
        "entities": _entities(),
    }


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
