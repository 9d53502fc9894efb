"""With which settings LightCAKE and its rivals are compared, with profile and links and without them."""

from collections.abc import Mapping
from typing import Any

from lightcake_fast.training.presets import BEST, BEST_TERMS, TERMS

Settings = Mapping[str, Any]

NO_TERMS: Settings = {"profile": "none", "links": False, "mixing": False}

# What `--preset best` becomes for a rival with the terms: chosen on validation, by model and data set.
SEARCHED: dict[str, dict[str, Settings]] = {
    "distmult": {"fb15k-237": {"lr_decay": 0.3}, "wn18rr": {"dim": 64}},
    "rgcn": {"wn18rr": {"profile": "both", "dim": 64, "row_dropout": 0.8, "epochs": 8}},
}


def terms_where_missing(score: str) -> dict[str, Settings]:
    """The terms, for the data sets on which LightCAKE's preset of a score goes without."""
    return {key: TERMS for key, s in BEST if s == score and (key, s) not in BEST_TERMS}


def without_terms(score: str) -> dict[str, Settings]:
    """What LightCAKE's presets of a score are where the terms have not changed them, by data set."""
    found: dict[str, Settings] = {}
    for key in dict.fromkeys(key for key, _ in BEST):
        searched = (key, score if (key, score) in BEST else "distmult")
        found[key] = {name: BEST[searched][name] for name in BEST_TERMS.get(searched, {})}
    return found
