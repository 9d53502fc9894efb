"""Settings from a file: TOML, or the saved configuration of a run."""

import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from lightcake_fast.errors import InputError, did_you_mean
from lightcake_fast.files import parse_json
from lightcake_fast.training.config import complete, fields

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a TOML file, or of a JSON file such as a saved `config.json`, by field.

    Raises:
        InputError: The file cannot be read or has an unknown field. `TrainingConfig` checks the values.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, got a JSON {type(values).__name__}")
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = [field.name for field, flag, _ in fields() if flag.saved]
    for name in values:
        if name not in known:
            raise InputError(f"{path}: expected names of settings, got {name!r}{did_you_mean(name, known)}")
    if path.suffix == ".json" and all(f.name in values for f, _, _ in fields() if f.default is MISSING):
        return {name: value for name, value in complete(values).items() if name in known}  # older run
    return values
