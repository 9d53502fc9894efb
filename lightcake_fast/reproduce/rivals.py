"""With which settings LightCAKE and its rivals are compared, with profile and links and without them."""

from collections.abc import Mapping
from typing import Any

from lightcake_fast.data.public import PUBLIC_DATASETS
from lightcake_fast.training.presets import preset_settings

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

# What `--preset best` becomes for a rival with the terms: chosen on validation, by model and data set.
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


def without_terms(score: str) -> dict[str, Settings]:
    """LightCAKE's presets of a score before the rules of LightCAKE alone changed them, by data set."""
    found: dict[str, Settings] = {}
    for key in ("family", *PUBLIC_DATASETS):
        whole, base = (preset_settings("best", key, model, score) for model in ("lightcake", None))
        found[key] = {name: base[name] for name, value in whole.items() if base[name] != value}
    return found
