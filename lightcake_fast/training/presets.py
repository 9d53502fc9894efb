"""Named settings: the paper's, and the best found on each data set's validation split."""

import math
from collections.abc import Mapping
from typing import Any

from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS, ModelSpec, takers
from lightcake_fast.scores import BUILT_IN, SCORES
from lightcake_fast.training.config import TrainingConfig, dataset_key

Settings = dict[str, int | float | bool | str]

# Source: LightCAKE, PAKDD 2021, section 4 (arXiv 2102.10826); the paper does not name its patience.
PAPER: Settings = {
    "layers": 4,
    "dim": 256,
    "batch_size": 512,
    "lr": 5e-3,
    "lr_decay": 0.0,
    "l2": 1e-7,
    "weight_average": 0.0,
    "epochs": 20,
    "patience": 3,
    "label_smoothing": 0.0,
    "input_dropout": 0.0,
    "row_dropout": 0.0,
    "unseen_rate": 0.0,
    "relation_bias": False,
    "profile": "none",
    "links": False,
    "paths": False,
    "mixing": False,
    "mask_targets": False,
}


def _best(
    layers: int,
    dim: int,
    batch_size: int,
    *,
    input_dropout: float,
    row_dropout: float,
    unseen_rate: float,
    epochs: int,
    l2: float = 1e-7,
    lr: float = 5e-3,
    lr_decay: float = 0.0,
    patience: int = 4,
) -> Settings:
    """A row of `BEST`: the bias and the masking helped everywhere."""
    return {
        "layers": layers,
        "dim": dim,
        "batch_size": batch_size,
        "lr": lr,
        "lr_decay": lr_decay,
        "l2": l2,
        "weight_average": 0.0,
        "epochs": epochs,
        "patience": patience,
        "label_smoothing": 0.0,
        "input_dropout": input_dropout,
        "row_dropout": row_dropout,
        "unseen_rate": unseen_rate,
        "relation_bias": True,
        "profile": "none",
        "links": False,
        "paths": False,
        "mixing": False,
        "mask_targets": True,
    }


_WN18RR = _best(
    2,
    128,
    1024,
    input_dropout=0.5,
    row_dropout=0.3,
    unseen_rate=0.1,
    epochs=20,
    lr_decay=0.15,
    patience=6,
)
_NELL995 = _best(2, 64, 4096, input_dropout=0.0, row_dropout=0.3, unseen_rate=0.3, l2=3e-6, epochs=20)
_WN18RR_TRANSE = _best(2, 64, 1024, input_dropout=0.0, row_dropout=0.2, unseen_rate=0.1, epochs=20)
_NELL995_TRANSE = _best(
    2, 64, 4096, input_dropout=0.0, row_dropout=0.1, unseen_rate=0.3, l2=3e-6, epochs=30, lr=1e-2
)
_DDB14_TRANSE = _best(2, 64, 512, input_dropout=0.3, row_dropout=0, unseen_rate=0.1, epochs=12)
_FAMILY_TRANSE = _best(2, 64, 512, input_dropout=0.0, row_dropout=0.0, unseen_rate=0.05, epochs=12, lr=1e-2)
_FB15K_237_TRANSE = _best(1, 128, 2048, input_dropout=0.1, row_dropout=0.1, unseen_rate=0.03, epochs=14)
_DDB14 = _best(2, 64, 512, input_dropout=0.3, row_dropout=0, unseen_rate=0.1, epochs=12, lr_decay=0.2)
BEST: dict[tuple[str, str], Settings] = {
    ("family", "distmult"): _best(
        2, 64, 512, input_dropout=0.2, row_dropout=0.0, unseen_rate=0.05, epochs=20, lr=1e-2
    ),
    ("family", "transe"): _FAMILY_TRANSE,
    ("family", "transh"): _FAMILY_TRANSE,
    ("fb15k-237", "distmult"): _best(
        1, 128, 2048, input_dropout=0.2, row_dropout=0.1, unseen_rate=0.03, epochs=14
    ),
    ("fb15k-237", "transe"): _FB15K_237_TRANSE,
    ("fb15k-237", "transh"): _FB15K_237_TRANSE,
    ("wn18rr", "distmult"): _WN18RR,
    ("wn18rr", "rotate"): _WN18RR,
    ("wn18rr", "transe"): _WN18RR_TRANSE,
    ("wn18rr", "transh"): _WN18RR_TRANSE,
    ("nell995", "distmult"): _NELL995,
    ("nell995", "complex"): _NELL995,
    ("nell995", "simple"): _NELL995,
    ("nell995", "transe"): _NELL995_TRANSE,
    ("nell995", "transh"): {**_NELL995_TRANSE, "lr": 5e-3},
    ("ddb14", "distmult"): _DDB14,
    ("ddb14", "transe"): _DDB14_TRANSE,
    ("ddb14", "transh"): _DDB14_TRANSE,
    ("ddb14", "complex"): _DDB14,
    ("ddb14", "rotate"): _DDB14,
    ("ddb14", "simple"): {**_DDB14, "lr": 1e-2},
    ("nell995", "rotate"): {**_NELL995, "row_dropout": 0.1, "lr": 1e-2},
}
OWN_DATA: Settings = _best(
    2, 64, 1024, input_dropout=0.2, row_dropout=0.1, unseen_rate=0.1, l2=1e-6, epochs=20
)

# What the settings become for LightCAKE with the terms beside its context; baselines go without them.
TERMS: Settings = {"profile": "score", "links": True}
_INPUT_PROFILE: Settings = {"profile": "both", "links": True}
_ALL_TERMS: Settings = {**_INPUT_PROFILE, "mixing": True}
_DDB14_TERMS: Settings = {**TERMS, "lr": 1e-2, "row_dropout": 0.3}
_FB15K_237_TERMS: Settings = {**TERMS, "paths": True, "epochs": 8, "lr_decay": 0.3}
_WN18RR_TERMS: Settings = {**_ALL_TERMS, "paths": True, "dim": 64, "row_dropout": 0.8, "epochs": 8}
_NELL995_TERMS: Settings = {**TERMS, "row_dropout": 0.8, "weight_average": 0.99}
BEST_TERMS: dict[tuple[str, str], Settings] = {
    ("family", "distmult"): _ALL_TERMS,
    ("family", "transe"): _INPUT_PROFILE,
    ("family", "transh"): _INPUT_PROFILE,
    ("fb15k-237", "distmult"): _FB15K_237_TERMS,
    ("fb15k-237", "transe"): _FB15K_237_TERMS,
    ("fb15k-237", "transh"): _FB15K_237_TERMS,
    ("wn18rr", "distmult"): {**_WN18RR_TERMS, "lr": 1e-2},
    ("wn18rr", "rotate"): _WN18RR_TERMS,
    ("wn18rr", "transe"): {**_WN18RR_TERMS, "lr_decay": 0.15},
    ("wn18rr", "transh"): {**_WN18RR_TERMS, "lr_decay": 0.15},
    **{("nell995", score): _NELL995_TERMS for score in BUILT_IN},
    ("nell995", "distmult"): {**_NELL995_TERMS, "epochs": 18},
    ("ddb14", "distmult"): _DDB14_TERMS,
    ("ddb14", "transe"): _INPUT_PROFILE,
    ("ddb14", "transh"): _INPUT_PROFILE,
    ("ddb14", "complex"): _DDB14_TERMS,
    ("ddb14", "simple"): _DDB14_TERMS,
    ("ddb14", "rotate"): {**_ALL_TERMS, "row_dropout": 0.3},
}

# Without what helps to tell relations apart. These trained well on the embedded set; nothing was searched.
_ENTITY: Settings = {
    "layers": 1,
    "dim": 64,
    "batch_size": 1024,
    "lr": 5e-3,
    "lr_decay": 0.1,
    "l2": 1e-7,
    "weight_average": 0.0,
    "epochs": 20,
    "patience": 5,
    "label_smoothing": 0.1,
    "input_dropout": 0.3,
    "row_dropout": 0.0,
    "unseen_rate": 0.0,
    "relation_bias": False,
    "profile": "none",
    "links": False,
    "paths": False,
    "mixing": False,
    "mask_targets": True,
}
# Wide rows, kept short by their cubes; docs/entities.md has what was tried.
_WIDE_ENTITY: Settings = {
    **_ENTITY,
    "dim": 256,
    "l2": 0.0,
    "label_smoothing": 0.0,
    "input_dropout": 0.0,
    "negatives": 4000,
    "patience": 4,
}
BEST_ENTITY: dict[str, Settings] = {
    "family": {**_ENTITY, "layers": 2, "batch_size": 256, "lr": 1e-2, "lr_decay": 0.05, "epochs": 25},
    "fb15k-237": {
        **_WIDE_ENTITY,
        "dim": 512,
        "batch_size": 2048,
        "lr": 1e-2,
        "lr_decay": 0.12,
        "weight_average": 0.995,
        "n3": 0.05,
        "mask_targets": False,
    },
    "wn18rr": {**_WIDE_ENTITY, "layers": 2, "lr": 1e-2, "lr_decay": 0.15, "n3": 0.1},
}
# What they become for LightCAKE, and for models without context, whose steps have all but ended by then.
_BEST_ENTITY_CONTEXT: dict[str, Settings] = {
    "family": {},
    "fb15k-237": {"context": "entity", "epochs": 12},
    "wn18rr": {"context": "entity", "epochs": 10, "n3": 0.03},
}
_BEST_ENTITY_ALONE: dict[str, Settings] = {"fb15k-237": {"epochs": 22}, "wn18rr": {"epochs": 22}}
# For LightCAKE with one score, and for scores that are distances, whose rows need not be short and go far.
_BEST_ENTITY_SCORE: dict[tuple[str, str], Settings] = {
    ("fb15k-237", "rotate"): {"mixing": False, "epochs": 22},
    ("wn18rr", "distmult"): {"lr": 5e-3},
}
_BEST_ENTITY_DISTANCE: dict[str, Settings] = {"family": {"lr": 4e-2}, "wn18rr": {"lr": 2e-2}}
WIDE = 1_000_000  # training triples of one's own: with more, rows that rank entities are no wider than others
_DISTANCES = ("transe", "rotate")
# of one task alone
_ONLY_RELATIONS = ("relation_bias", "unseen_rate", "profile", "links", "paths")
_ONLY_ENTITIES = ("n3", "negatives")


def own_data(triples: int) -> Settings:
    """The settings for a data set that none were searched for, by its number of training triples.

    An epoch has some 20 steps or more, a run some 2,000: patience ends most of them sooner.
    """
    batch = 1024
    while batch > 32 and 20 * batch > triples:
        batch //= 2
    steps = max(1, math.ceil(triples / batch))
    epochs, patience = math.ceil(2000 / steps), math.ceil(200 / steps)
    return {**OWN_DATA, "batch_size": batch, "epochs": max(20, epochs), "patience": max(4, patience)}


def preset_title(config: TrainingConfig) -> str:
    """The preset as what it is: for data of one's own nothing was searched."""
    if config.preset == "best" and dataset_key(config.dataset) is None:
        return "settings by the number of triples"
    return f"preset {config.preset}"


def preset_settings(
    preset: str, dataset: str, model: str, score: str, triples: int | None = None, task: str = "relation"
) -> Settings:
    """The settings of a preset for a data set (name or folder) and model; see `own_data` for unknown ones.

    A score of the package that has no row here gets DistMult's. A baseline gets those of LightCAKE with the
    score nearest to its own, without what it lacks and without the terms, which flags give it.
    """
    spec, key = MODELS[model], dataset_key(dataset) or ""
    if preset == "paper":
        return {**PAPER, **spec.overrides}
    fallback = OWN_DATA if triples is None else own_data(triples)
    if task == "entity":
        steps = {name: fallback[name] for name in ("batch_size", "epochs", "patience")}
        own = {**_WIDE_ENTITY, "n3": 0.05, **steps, "dim": 64 if (triples or 0) > WIDE else 256}
        best = _of_model(BEST_ENTITY.get(key, own), spec, searched=key in BEST_ENTITY)
        if model == "lightcake":
            best |= {"mixing": True, **_BEST_ENTITY_CONTEXT.get(key, {"context": "entity"})}
            best |= _BEST_ENTITY_SCORE.get((key, score), {})
        if not spec.context:
            best |= _BEST_ENTITY_ALONE.get(key, {})
        if (spec.nearest or score) in _DISTANCES:
            best |= {"n3": 0.0, **_BEST_ENTITY_DISTANCE.get(key, {})}
        return best
    best = BEST.get((key, spec.nearest or score)) or BEST.get((key, "distmult"), fallback)
    if model != "lightcake":
        return _of_model(best, spec, searched=best is not fallback)
    searched = score if (key, score) in BEST or score not in BUILT_IN else "distmult"
    return {**best, **BEST_TERMS.get((key, searched), TERMS)}


def _of_model(settings: Settings, spec: ModelSpec, *, searched: bool) -> Settings:
    """What settings become for a model; epochs that go by the number of triples get no fewer."""
    found = {**settings, **spec.overrides}
    return found if searched else {**found, "epochs": max(found["epochs"], settings["epochs"])}


def resolve(explicit: Mapping[str, Any], triples: int | None = None) -> TrainingConfig:
    """The configuration of a new run: what was given, and its preset for everything else.

    Args:
        explicit: The settings given.
        triples: How many the training split has; None before it is read.

    Raises:
        InputError: A given value is wrong, or the model has no such thing.
    """
    given = TrainingConfig(**{**PAPER, **explicit})
    model = given.model
    if (
        given.task == "entity"
        and explicit.get("layers") == 0
        and model == "lightcake"
        and given.score in MODELS
    ):
        model = given.score  # which it then is
    settings: dict[str, Any] = preset_settings(
        given.preset, given.dataset, model, given.score, triples, given.task
    )
    untouched = TrainingConfig(**{**settings, "model": given.model})
    for name in explicit:
        models = takers(name)
        # a saved configuration has every field: one that is as the preset leaves it is no wish
        if models and given.model not in models and getattr(given, name) != getattr(untouched, name):
            raise InputError(f"{name}: {given.model} has no such setting, only {', '.join(models)} have")
    settings = {**settings, **explicit}
    if not settings["layers"]:  # there is nothing that would carry a profile on, or whose sums are mixed
        if settings["profile"] == "both" and "profile" not in explicit:
            settings["profile"] = "score"
        if "mixing" not in explicit:
            settings["mixing"] = False
    config = TrainingConfig(**settings)
    _check_task(config)
    if config.task == "entity":
        _check_entity(config)
    return config


def _check_task(config: TrainingConfig) -> None:
    """Raise for a setting that says nothing of what is predicted."""
    for name in _ONLY_RELATIONS if config.task == "entity" else _ONLY_ENTITIES:
        value = getattr(config, name)
        if value not in (False, 0, "none"):
            raise InputError(f"{name}: got {value!r} for the task {config.task!r}, which has no such setting")


def _check_entity(config: TrainingConfig) -> None:
    """Raise for what does not rank entities."""
    if not MODELS[config.model].ranks_entities:
        able = ", ".join(name for name, spec in MODELS.items() if spec.ranks_entities)
        raise InputError(f"model: got {config.model!r} for the task 'entity', wanted one of {able}")
    if config.model == "lightcake" and config.score in SCORES and SCORES[config.score].planes:
        others = ", ".join(name for name, score in SCORES.items() if not score.planes)
        raise InputError(f"score: got {config.score!r} for the task 'entity', wanted one of {others}")
    if config.cuda_graph == "on":
        raise InputError("cuda_graph: got 'on' for the task 'entity', whose steps differ in shape")
