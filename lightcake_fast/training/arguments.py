"""Settings of a run from the command line or from a file."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from lightcake_fast.errors import InputError, did_you_mean
from lightcake_fast.files import parse_json
from lightcake_fast.models import takers
from lightcake_fast.scores import named_by_module
from lightcake_fast.training.config import TrainingConfig, complete, fields
from lightcake_fast.training.flags import GROUPS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def add_flags(
    parser: argparse.ArgumentParser, helps: Mapping[str, str] | None = None
) -> list[argparse.Action]:
    """Add a flag per field to `parser`. The parsed result contains only the given flags.

    Args:
        parser: Parser of the command.
        helps: Help texts that replace the help text of a field, by field name.

    Returns:
        The flags that only `--help-all` shows.
    """
    rare = []
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    types = {"str": str, "int": int, "float": float}
    for field, flag, kind in fields():
        name = "--" + field.name.replace("_", "-")
        models = ", ".join(takers(field.name))
        text = (f"{models}: {flag.help}" if models else flag.help).replace("%", "%%")
        text = (helps or {}).get(field.name, text)
        if kind == "bool":
            # a preset can switch a model's setting on, so its flag needs a --no- form
            switch = field.default is False and flag.group != "model"
            action = "store_true" if switch else argparse.BooleanOptionalAction
            added = groups[flag.group].add_argument(name, action=action, default=argparse.SUPPRESS, help=text)
        else:
            added = groups[flag.group].add_argument(
                name,
                type=types[kind],
                choices=None if flag.by_module else flag.known or None,
                metavar=flag.metavar,
                default=argparse.SUPPRESS,
                help=text,
            )
        if not flag.common:
            rare.append(added)
    return rare


def resumed(saved: TrainingConfig, explicit: Mapping[str, Any]) -> TrainingConfig:
    """Combine the saved configuration of a run with the flags of this call.

    Raises:
        InputError: A given flag is fixed for the whole run.
    """
    allowed = {field.name for field, flag, _ in fields() if flag.on_resume}
    if named_by_module(saved.score) and explicit.get("score") == saved.score:  # given only to allow its code
        explicit = {name: value for name, value in explicit.items() if name != "score"}
    refused = ["--" + name.replace("_", "-") for name in explicit if name not in allowed]
    if refused:
        may = ", ".join("--" + name.replace("_", "-") for name in sorted(allowed - {"resume"}))
        raise InputError(f"--resume: expected only {may} or --debug, got {', '.join(refused)}: omit it")
    return dataclasses.replace(saved, **explicit)


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
