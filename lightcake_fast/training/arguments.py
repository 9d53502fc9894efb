"""Command-line flags for the settings of a run."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from lightcake_fast.errors import InputError
from lightcake_fast.models import takers
from lightcake_fast.scores import named_by_module
from lightcake_fast.training.config import TrainingConfig, fields
from lightcake_fast.training.flags import GROUPS


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
