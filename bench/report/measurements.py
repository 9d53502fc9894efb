"""What a results file holds: one measurement a benchmark, and what was not run."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lightcake_fast.errors import InputError

NOT_RUN = "not_run"  # key in the results file


@dataclass(frozen=True)
class Measurement:
    """One benchmark; what does not apply is None.

    Attributes:
        kind: "layer", "peers", "training", "evaluation", "loading", "import", "memory" or "scaling".
        mode: What of it was timed: "forward", "backward", "both", "step", "epoch" and so on.
        model: What was timed.
        data: The data set.
        device: "cpu" or "cuda".
        device_name: The chip.
        versions: Of Python and packages.
        seconds: The fastest round.
        rounds: How many there were.
        items: What a call deals with: context triples of a layer, triples of a step, epoch or evaluation.
        entities: N.
        relations: R, raw relations.
        dim: d.
        layers: L.
        parameters: Numbers that the model learns.
        peak_bytes: Most memory held beyond what was there before, outputs and gradients not counted.
        gathered_bytes: Bytes of the embedding rows that a call gathers.
        memory: "kept" where freed memory is kept as in training, else "fresh".
        beside: The fastest rounds of the models that took turns with this one, in seconds.
    """

    kind: str
    mode: str
    model: str
    data: str
    device: str
    device_name: str
    versions: Mapping[str, str]
    seconds: float
    rounds: int
    items: int
    entities: int | None = None
    relations: int | None = None
    dim: int | None = None
    layers: int | None = None
    parameters: int | None = None
    peak_bytes: int | None = None
    gathered_bytes: int | None = None
    memory: str | None = None
    beside: Mapping[str, float] | None = None

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> "Measurement":
        """Read a benchmark as pytest-benchmark writes it.

        Raises:
            InputError: It has no figures, or not those of this project's suite.
        """
        try:
            stats, info = entry["stats"], entry["extra_info"]
            known = {field.name for field in fields(cls)}
            given = {name: value for name, value in info.items() if name in known}
            made = cls(seconds=float(stats["min"]), rounds=int(stats["rounds"]), **given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wanted = ", ".join(field.name for field in fields(cls) if field.default is MISSING)
            name = entry.get("name", "a benchmark") if isinstance(entry, Mapping) else "a benchmark"
            raise InputError(f"{name}: wanted a benchmark of this project's bench/ with {wanted}") from error
        if not made.seconds > 0:
            raise InputError(f"{entry.get('name')}: got {made.seconds} seconds, wanted more than 0")
        return made

    @property
    def items_per_second(self) -> float:
        """Throughput."""
        return self.items / self.seconds


@dataclass(frozen=True)
class NotRun:
    """What was left out, and why."""

    kind: str
    model: str
    data: str
    device: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """As plain values."""
        return asdict(self)


def read_results(path: Path) -> tuple[list[Measurement], list[NotRun]]:
    """Read a file that `pytest bench/ --benchmark-only --benchmark-json FILE` wrote.

    Raises:
        InputError: There is no such file, it is damaged, or it holds no benchmark of this project's suite.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON, or cut short: {error}") from error
    entries = content.get("benchmarks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: holds no benchmarks, wanted what --benchmark-json wrote")
    try:
        left_out = [NotRun(**entry) for entry in content.get(NOT_RUN, [])]
        return [Measurement.from_entry(entry) for entry in entries], left_out
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
