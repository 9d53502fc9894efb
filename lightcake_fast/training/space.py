"""Search space: values or ranges by the name of their setting."""

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

Values = Sequence[Any] | tuple[float, float]  # list: these values; tuple: lower and upper bound

FIXED = {
    *("dataset", *READING, "data_dir", "out", "resume", "preset", "model", "task", "ties", "quiet"),
    *("partition", "device", "backend", "cuda_graph"),  # these do not change the result
}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy numbers and arrays in settings, or in values to try, to Python numbers and lists."""
    if not isinstance(values, Mapping):
        raise InputError(f"vary: expected a dict from settings to values to try, got {values!r}")
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
    """Check a search space together with the fixed settings.

    Raises:
        InputError: A setting or a value is wrong, or the grid has a range.
    """
    known = {field.name: (flag, kind) for field, flag, kind in fields() if field.name not in FIXED}
    if not vary:
        raise InputError("vary: expected settings to try, got none")
    for name, values in vary.items():
        if name not in known:
            raise InputError(f"vary: expected settings to try, got {name!r}{did_you_mean(name, list(known))}")
        if name in settings:
            raise InputError(f"{name}: expected a value or values to try, got both: omit one of them")
        if isinstance(values, tuple) and sampler == "grid":
            raise InputError(f"vary: expected a list of values for {name} in a grid, got a range")
        _check_values(name, values, *known[name])


def _check_values(name: str, values: Values, flag: Flag, kind: str) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"vary: expected {name} as a list, or as a tuple of two numbers, got {values!r}")
    types = ("int", "float") if kind == "float" else (kind,)
    wrong = [v for v in values if type(v).__name__ not in types or not flag.accepts(v)]
    if not len(values) or wrong:
        got = wrong[0] if wrong else values
        raise InputError(f"vary: expected {name} to be {flag.wanted(kind, got)}, got {got!r}")
    if isinstance(values, tuple) and (
        len(values) != 2 or kind not in ("int", "float") or not values[0] < values[1]
    ):
        raise InputError(f"vary: expected {name} with a lower bound below its upper bound, got {values!r}")
    if len(set(values)) < len(values):
        raise InputError(f"vary: expected each value of {name} once, got {values!r}")


def saved_space(vary: Mapping[str, Values]) -> dict[str, Any]:
    """Convert a search space for JSON. A range becomes an object, because JSON has no tuples."""
    return {
        name: {"low": values[0], "high": values[1]} if isinstance(values, tuple) else list(values)
        for name, values in vary.items()
    }


def points(vary: Mapping[str, Values]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values and of range bounds."""
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def suggested(trial: "Trial", name: str, values: Values) -> Any:
    """Ask Optuna for a value. A range over a factor of ten or more is sampled on a log scale."""
    if not isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    low, high = values
    by_magnitude = low > 0 and high >= 10 * low
    whole = next(kind for field, _, kind in fields() if field.name == name) == "int"
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, low, high, log=by_magnitude)


def parse_vary(words: Sequence[str]) -> dict[str, Values]:
    """Parse values to try from words such as "dim=32,64" and "lr=1e-3..1e-1".

    Raises:
        InputError: A word has another form, or a value does not have the type of its setting.
    """
    kinds = {field.name: kind for field, _, kind in fields()}
    vary: dict[str, Values] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if not text:
            raise InputError(f"--vary: expected NAME=VALUE,... or NAME=LOW..HIGH, got {word!r}")
        try:
            values = [
                _value(kinds.get(name, "str"), part) for part in text.split(".." if ".." in text else ",")
            ]
        except ValueError as error:
            raise InputError(f"--vary: expected values of the right type, got {word!r}: {error}") from error
        if name in vary:
            raise InputError(f"--vary: expected each setting once, got {name} twice: join its values")
        vary[name] = tuple(values) if ".." in text else values
    return vary


def _value(kind: str, text: str) -> Any:
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"expected true or false, got {text!r}")
        return text == "true"
    if kind == "int":
        return int(text)
    value = float(text) if kind == "float" else text
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


def in_words(point: Mapping[str, Any]) -> str:
    """Format settings in one line."""
    return ", ".join(
        f"{name} {v:.3g}" if isinstance(v, float) else f"{name} {v}" for name, v in point.items()
    )
