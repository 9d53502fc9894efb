"""What a search tries: values or ranges by the name of their setting."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lightcake_fast.errors import InputError, did_you_mean
from lightcake_fast.training.config import READING, fields
from lightcake_fast.training.flags import Flag

if TYPE_CHECKING:
    from optuna import Trial

Values = Sequence[Any] | tuple[float, float]  # a list: these values; a tuple: from the first to the second

FIXED = {
    *("dataset", *READING, "data_dir", "out", "resume", "preset", "model", "task", "ties", "quiet"),
    *("partition", "device", "backend", "cuda_graph"),  # where a run computes, not what
}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, or values to try, as Python's own numbers and lists where they are NumPy's."""
    if not isinstance(values, Mapping):
        raise InputError(f"vary: got {values!r}, wanted values to try by the name of their setting")
    found = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        elif isinstance(value, Sequence) and not isinstance(value, str):
            own = (item.item() if isinstance(item, np.generic) else item for item in value)
            value = tuple(own) if isinstance(value, tuple) else list(own)
        found[name] = value
    return found


def check_space(vary: Mapping[str, Values], sampler: str, settings: Mapping[str, Any]) -> None:
    """Check what a search shall try, beside the settings that stay.

    Raises:
        InputError: A setting or a value is wrong, or of a range no grid can be made.
    """
    known = {field.name: (flag, kind) for field, flag, kind in fields() if field.name not in FIXED}
    if not vary:
        raise InputError("vary: got nothing, wanted settings to try")
    for name, values in vary.items():
        if name not in known:
            raise InputError(f"vary: there is no {name!r} to try{did_you_mean(name, list(known))}")
        if name in settings:
            raise InputError(f"{name}: got a value and values to try, wanted one of them")
        if isinstance(values, tuple) and sampler == "grid":
            raise InputError(f"vary: got a range for {name}, wanted values, of which a grid is made")
        _check_values(name, values, *known[name])


def _check_values(name: str, values: Values, flag: Flag, kind: str) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"vary: got {name}={values!r}, wanted a list of values, or a tuple of two numbers")
    types = ("int", "float") if kind == "float" else (kind,)
    wrong = [v for v in values if type(v).__name__ not in types or not flag.accepts(v)]
    if not len(values) or wrong:
        got = wrong[0] if wrong else values
        raise InputError(f"vary: got {name}={got!r}, wanted {flag.wanted(kind, got)}")
    if isinstance(values, tuple) and (
        len(values) != 2 or kind not in ("int", "float") or not values[0] < values[1]
    ):
        raise InputError(f"vary: got {name}={values!r}, wanted a number and a higher one")
    if len(set(values)) < len(values):
        raise InputError(f"vary: got {name}={values!r}, wanted each value once")


def saved_space(vary: Mapping[str, Values]) -> dict[str, Any]:
    """Values to try as JSON holds them: a range is an object, because JSON has no tuples."""
    return {
        name: {"low": values[0], "high": values[1]} if isinstance(values, tuple) else list(values)
        for name, values in vary.items()
    }


def points(vary: Mapping[str, Values]) -> Iterator[dict[str, Any]]:
    """Every combination of values, and of the ends of ranges."""
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def suggested(trial: "Trial", name: str, values: Values) -> Any:
    """What Optuna would try; of a range by magnitude where its ends are a factor of ten apart."""
    if not isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    low, high = values
    by_magnitude = low > 0 and high >= 10 * low
    whole = next(kind for field, _, kind in fields() if field.name == name) == "int"
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, low, high, log=by_magnitude)


def parse_vary(words: Sequence[str]) -> dict[str, Values]:
    """Values to try from words such as "dim=32,64" and "lr=1e-3..1e-1".

    Raises:
        InputError: A word is not of that form, or a value not of its setting's type.
    """
    kinds = {field.name: kind for field, _, kind in fields()}
    vary: dict[str, Values] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if not text:
            raise InputError(f"--vary: got {word!r}, wanted NAME=VALUE,... or NAME=LOW..HIGH")
        try:
            values = [
                _value(kinds.get(name, "str"), part) for part in text.split(".." if ".." in text else ",")
            ]
        except ValueError as error:
            raise InputError(f"--vary: got {word!r}: {error}") from error
        if name in vary:
            raise InputError(f"--vary: got {name} twice, wanted all its values in one place")
        vary[name] = tuple(values) if ".." in text else values
    return vary


def _value(kind: str, text: str) -> Any:
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"wanted true or false, not {text!r}")
        return text == "true"
    if kind == "int":
        return int(text)
    value = float(text) if kind == "float" else text
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"wanted a number, not {text!r}")
    return value


def in_words(point: Mapping[str, Any]) -> str:
    """Settings in a line."""
    return ", ".join(
        f"{name} {v:.3g}" if isinstance(v, float) else f"{name} {v}" for name, v in point.items()
    )
