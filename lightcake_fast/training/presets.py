"""Presets: the settings of the paper, and the best settings of searches on the validation splits."""

import math
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS, takers
from lightcake_fast.models.terms import ALL_TERMS, TERMS
from lightcake_fast.models.terms.term import chosen
from lightcake_fast.scores import BUILT_IN, SCORES
from lightcake_fast.training.config import TrainingConfig, dataset_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, int | float | bool | str]

OWN = "own"
# settings of only one task
_ONLY_RELATIONS = ("relation_bias", "unseen_rate", *TERMS)
_ONLY_ENTITIES = ("n3", "negatives")


@cache
def _rules() -> tuple[dict[str, Any], ...]:
    """The rules of `presets.toml`, in order."""
    text = files("lightcake_fast.training").joinpath("presets.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["rule"])


def preset_key(dataset: str, task: str) -> str:
    """Return the name of a data set in the rules of a task. `dataset` is a name or a folder."""
    key, named = dataset_key(dataset), set[str]()
    for rule in _rules():
        if rule["when"].get("task") == task:
            named |= _values(rule["when"], "dataset")
    return key if key in named else OWN


def preset_title(config: TrainingConfig) -> str:
    """Describe the preset. The settings of the user's data sets depend on the number of triples."""
    if config.preset == "best" and dataset_key(config.dataset) is None:
        return "settings by the number of triples"
    return f"preset {config.preset}"


def preset_settings(
    preset: str,
    dataset: str,
    model: str | None,
    score: str,
    triples: int | None = None,
    task: str = "relation",
) -> Settings:
    """Return the settings of a preset.

    Args:
        preset: "best" or "paper".
        dataset: Name or folder.
        model: A key of `MODELS`. None skips the rules of a single model.
        score: Score of LightCAKE. A baseline uses its `nearest` score instead.
        triples: Number of training triples. None before they are read.
        task: "relation" or "entity".
    """
    spec, key = MODELS.get(model or ""), preset_key(dataset, task)
    score = (spec and spec.nearest) or score
    given: dict[str, set[str | None]] = {
        "preset": {preset},
        "task": {task},
        "dataset": {key},
        "model": {model, "no-context" if spec and not spec.context else model},
        "score": {score, "built-in" if score in BUILT_IN else score},
    }
    found: Settings = {}
    for rule in _rules():
        when = rule["when"]
        applies = all(given[name] & _values(when, name) for name in when.keys() & given.keys())
        if applies and (triples or 0) >= when.get("min_triples", 0):
            found |= {name: value for name, value in rule.items() if name != "when"}
    return _by_size(found, triples) if triples and preset == "best" and key == OWN else found


def _values(when: Mapping[str, Any], name: str) -> set[str]:
    """Return the values of a condition."""
    value = when.get(name, [])
    return {value} if isinstance(value, str) else set(value)


def _by_size(settings: Mapping[str, Any], triples: int) -> Settings:
    """Adapt settings to the number of training triples.

    An epoch has at least about 20 steps and a run about 2,000. Early stopping ends most runs sooner.
    """
    batch = settings["batch_size"]
    while batch > 32 and 20 * batch > triples:
        batch //= 2
    steps = math.ceil(triples / batch)
    epochs, patience = math.ceil(2000 / steps), math.ceil(200 / steps)
    return {
        **settings,
        "batch_size": batch,
        "epochs": max(settings["epochs"], epochs),
        "patience": max(settings["patience"], patience),
    }


def resolve(explicit: Mapping[str, Any], triples: int | None = None) -> TrainingConfig:
    """Return the configuration of a new run: the given settings, and the preset for the others.

    Args:
        explicit: The given settings.
        triples: Number of training triples. None before they are read.

    Raises:
        InputError: A given value is wrong, or the model does not have the setting.
    """
    given = TrainingConfig(**{**preset_settings("paper", "", None, ""), **explicit})
    model = given.model
    if (
        given.task == "entity"
        and explicit.get("layers") == 0
        and model == "lightcake"
        and given.score in MODELS
    ):
        model = given.score  # lightcake without layers is this model
    settings: dict[str, Any] = preset_settings(
        given.preset, given.dataset, model, given.score, triples, given.task
    )
    untouched = TrainingConfig(**{**settings, "model": given.model})
    for name in explicit:
        models = takers(name)
        # a saved configuration has every field: ignore a field that equals the preset
        if models and given.model not in models and getattr(given, name) != getattr(untouched, name):
            raise InputError(f"{name}: expected model {' or '.join(models)}, got {given.model}: omit {name}")
    settings = {**settings, **explicit}
    if not settings["layers"]:
        for name, term in ALL_TERMS.items():
            if name not in explicit:
                settings[name] = term.without_layers(settings[name])
    config = TrainingConfig(**settings)
    _check_task(config)
    if config.task == "entity":
        _check_entity(config)
    return config


def _check_task(config: TrainingConfig) -> None:
    """Reject settings that the task does not use."""
    for name in _ONLY_RELATIONS if config.task == "entity" else _ONLY_ENTITIES:
        value = getattr(config, name)
        if chosen(value):
            raise InputError(f"{name}: expected no value for task {config.task!r}, got {value!r}: omit it")


def _check_entity(config: TrainingConfig) -> None:
    """Reject models, scores and settings that cannot rank entities."""
    if not MODELS[config.model].ranks_entities:
        able = ", ".join(name for name, spec in MODELS.items() if spec.ranks_entities)
        raise InputError(f"model: expected one of {able} for task 'entity', got {config.model!r}")
    if config.model == "lightcake" and config.score in SCORES and SCORES[config.score].planes:
        others = ", ".join(name for name, score in SCORES.items() if not score.planes)
        raise InputError(f"score: expected one of {others} for task 'entity', got {config.score!r}")
    if config.cuda_graph == "on":
        raise InputError(
            "cuda_graph: expected 'auto' or 'off' for task 'entity', got 'on': shapes change per step"
        )
