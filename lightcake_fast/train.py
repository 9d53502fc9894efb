"""Training: `lightcake_fast.train(...)` in Python, or `python -m lightcake_fast.train`."""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from lightcake_fast import cli
from lightcake_fast.data import KnowledgeGraph, check_readable, load_dataset
from lightcake_fast.errors import DataWarning, InputError, did_you_mean
from lightcake_fast.inference.result import TrainingResult
from lightcake_fast.process import prepare_process, speed_up
from lightcake_fast.scores import import_score, named_by_module
from lightcake_fast.sharding.world import World, joined
from lightcake_fast.terminal import Console
from lightcake_fast.training.arguments import add_flags, read_settings, resumed
from lightcake_fast.training.config import READING, TrainingConfig, fields
from lightcake_fast.training.experiment import check
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.loop import Callback, train_to_end
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import own_numerics
from lightcake_fast.training.sharded import load_share, with_partition

DESCRIPTION = "Train LightCAKE on a knowledge graph, and test its predictions of relations or entities."
EPILOG = """\
examples:
  python -m lightcake_fast.train                              the generated genealogy, under a minute
  python -m lightcake_fast.train --dataset nell995            best known settings for a public data set
  python -m lightcake_fast.train --dataset my/folder --score transe --layers 1 --dim 128
  python -m lightcake_fast.train --score mymodule:MINE        a user-defined score (docs/architecture.md)
  python -m lightcake_fast.train --dataset fb15k-237 --task entity    entity prediction
  python -m lightcake_fast.train --dataset ddb14 --preset paper --out runs/paper
  python -m lightcake_fast.train --dataset ddb14 --seeds 0,1,2    three runs, with mean and deviation
  python -m lightcake_fast.train --resume runs/paper          resume a stopped run
  python -m lightcake_fast.train --resume runs/paper --epochs 30
  python -m lightcake_fast.train --resume runs/mine --dataset moved/folder
  torchrun --nproc-per-node 4 -m lightcake_fast.train --dataset my/folder     4 processes (docs/scale.md)

Other settings come from the preset for the data set and score. Ctrl-C and SIGTERM save first. A third Ctrl-C
aborts the save.
Exit codes: 0 done, 1 out of memory or disk space (or another process is lost), 2 wrong input, 130 Ctrl-C,
143 SIGTERM.
"""


def train(
    data: Any = None,
    *,
    callbacks: Callback | Iterable[Callback] | None = (),
    **settings: Any,
) -> TrainingResult:
    """Train a model on a knowledge graph and test it, as the command does.

    Args:
        data: Name, folder or file of a data set (see `load_dataset`). Or data from memory: a
            `KnowledgeGraph`, or triples for its `from_triples`, split by `split`. None takes the generated
            genealogy, or with `resume` the data set of the run.
        callbacks: One function or several. They are called in order at the end of each epoch with its record:
            a dict of `epoch`, `loss`, `valid` (metrics), `seconds` and `triples_per_second`. An exception of
            a callback ends the training.
        settings: Flags of `python -m lightcake_fast.train`, by name: `score="transe", epochs=30`. Other
            settings come from the preset. `score="MODULE:NAME"` runs the code of the module. With `out` or
            `resume` the run folder is kept, else no file remains. `quiet` prints nothing at all.

    Raises:
        InputError: A setting, the data or the run folder is wrong, or the training diverged.
        MemoryError: Memory ran out.
        TypeError: A setting is unknown, or `data` or a callback has the wrong type.
    """
    explicit = checked_settings("train", settings, data)
    if named_by_module(str(settings.get("score"))):
        import_score(settings["score"])  # named by the caller; a score of a run folder is not imported
    called = _several(callbacks)
    speed_up()
    reporter = Reporter(console=Console(quiet=bool(settings.get("quiet"))))
    with own_numerics(), TemporaryDirectory(prefix="lightcake_fast-") as passing:
        if explicit.keys() & {"out", "resume"}:
            return _train(data, explicit, reporter, Interrupt(), called)
        result = _train(data, {**explicit, "out": passing}, reporter, Interrupt(), called, kept=False)
        _ = result.model  # loaded while the folder exists
    return result


def _several(callbacks: Any) -> tuple[Callback, ...]:
    given = (callbacks,) if callable(callbacks) else callbacks or ()
    given = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(map(callable, given)):
        raise TypeError(f"callbacks: expected a function or several, got {callbacks!r}")
    return given


def checked_settings(function: str, settings: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Return the settings of a Python call, without `data`, in the form of flags.

    Raises:
        TypeError: A setting is unknown.
    """
    known = [field.name for field, _, _ in fields() if field.name != "dataset"]
    explicit = {}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"{function}: expected known settings, got {name!r}{did_you_mean(name, known)}")
        if name == "split" and isinstance(data, str | Path | None) and isinstance(value, Iterable):
            explicit[name] = value if isinstance(value, str) else ",".join(map(str, value))
        elif value is not None or name not in ("out", "resume"):
            explicit[name] = str(value) if isinstance(value, PurePath) else value
    return explicit


def at_hand(data: Any, options: Mapping[str, Any]) -> KnowledgeGraph:
    """Return data from memory as a `KnowledgeGraph`, with the options in `READING`.

    Raises:
        InputError: A graph is invalid, or is given together with these options. See also
            `KnowledgeGraph.from_triples`.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(data, KnowledgeGraph):
        return KnowledgeGraph.from_triples(data, **options)
    asked = [name for name, value in options.items() if value is not False]
    if asked:
        raise InputError(f"{', '.join(asked)}: expected triples, got a KnowledgeGraph with splits and names")
    check_readable(data)
    return data


def _train(
    data: Any,
    explicit: Mapping[str, Any],
    reporter: Reporter,
    interrupt: Interrupt,
    callbacks: Sequence[Callback] = (),
    *,
    kept: bool = True,
    world: World | None = None,
    begun: bool = False,
) -> TrainingResult:
    """Train with the settings `explicit`, in a run folder that is `kept` or temporary.

    With a `world` of torchrun, this process has a share of the data set. With `begun`, an existing run
    continues.
    """
    config, data, run = prepared(data, explicit, kept=kept, world=world, begun=begun)
    with run:
        train_to_end(config, data, run, reporter, interrupt, callbacks)
    return TrainingResult.of(run, data)


def prepared(
    data: Any,
    explicit: Mapping[str, Any],
    *,
    kept: bool = True,
    world: World | None = None,
    begun: bool = False,
) -> tuple[TrainingConfig, Any, RunFolder]:
    """Return configuration, data set and run folder of a new or resumed training.

    Args:
        data: See `train`.
        explicit: The given settings.
        kept: Whether the run folder remains.
        world: All processes of torchrun. This process gets a share of the data set.
        begun: Resume a run with the same settings if the folder contains one.

    Raises:
        InputError: See `train`.
    """
    graph = None
    if isinstance(data, str | Path):
        explicit = {**explicit, "dataset": str(data)}
    elif data is not None:
        options = {name: value for name, value in explicit.items() if name in READING}
        explicit = {name: value for name, value in explicit.items() if name not in options}
        graph = at_hand(data, options)
    explicit = with_partition(explicit)
    if "resume" in explicit:
        run = _folder(world, lambda: RunFolder.open(Path(explicit["resume"]).expanduser()))
        config = resumed(run.config, explicit).anchored()
        data = graph or _loaded(config, world, run)
    elif graph is not None:
        config = resolve({**explicit, "dataset": graph.name}, len(graph.train))
        check(config, graph)
        run = RunFolder.create(config, graph.name, data=graph if kept else None, kept=kept)
        data, config = graph, run.config
    else:
        config = resolve(explicit)
        data = _loaded(config, world)
        config = resolve(explicit, data.num_train).anchored()
        check(config, data)
        make = RunFolder.create_or_open if begun else RunFolder.create
        run = _folder(world, lambda: make(config, data.name, kept=kept))
    return config, data, run


def _folder(world: World | None, make: Callable[[], RunFolder]) -> RunFolder:
    return make() if world is None else RunFolder.of_all(world, make)


def _loaded(config: TrainingConfig, world: World | None, run: RunFolder | None = None) -> Any:
    """Load the data set, or this process's share of it."""

    def whole() -> KnowledgeGraph:
        if run is not None:
            return run.load_dataset(config)
        return load_dataset(config.dataset, **config.reading())

    if world is not None:
        return load_share(config, world, whole)
    if config.partition is not None:
        raise InputError("partition: expected several processes, got one: use torchrun, or omit --partition")
    return whole()


def make_parser() -> cli.ArgumentParser:
    """Make the command's parser."""
    parser = cli.ArgumentParser("python -m lightcake_fast.train", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s [--dataset NAME] [--score SCORE] [flags]"
    parser.leave_to_help_all(add_flags(parser))
    several = parser.add_argument_group("several runs and settings from a file")
    several.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="file of settings: .toml, or a run's config.json; flags override it (default: none)",
    )
    several.add_argument(
        "--seeds",
        metavar="S,S,...",
        type=_seeds,
        help="seeds of several runs, instead of --seed: one run per seed, in DIR/seed-S for --out DIR, then "
        "mean and deviation; repeat the command to resume after a stop (default: one run with --seed)",
    )
    return parser


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    seeds = [int(word) for word in words if word.isascii() and word.isdigit()]
    if len(seeds) < len(words) or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected different integers, as in 0,1,2, got {text!r}")
    return seeds


def main(argv: Sequence[str]) -> int:
    """Train or resume a run.

    Raises:
        InputError: A flag, the data or the run folder is wrong.
        SystemExit: A signal was received: 128 + its number, after saving.
    """
    explicit = vars(make_parser().parse_args(argv))
    del explicit["debug"]  # `cli.run` reads it
    if named_by_module(explicit.get("score", "")):
        import_score(explicit["score"])  # the user typed it; a score from --config is not imported
    file, seeds = explicit.pop("config"), explicit.pop("seeds")
    for flag, wrong in (("--config", file), ("--seeds", seeds)):
        if wrong is not None and "resume" in explicit:
            raise InputError(f"{flag}: expected a new run, got --resume: omit one of them")
    if seeds is not None and "seed" in explicit:
        raise InputError("--seeds: expected no --seed, got both: omit one of them")
    if file is not None:
        explicit = {**read_settings(file.expanduser()), **explicit}
    quiet = explicit.get("quiet", False)
    runs = _with_seeds(explicit, seeds)
    # listed before any process makes a run folder, so that all processes get the same list
    begun = [each for each in runs if seeds and "out" in each and RunFolder.is_at(Path(each["out"]))]
    with joined() as world, Interrupt(abortable=world is None) as interrupt:
        console = None if world is None or world.first else Console(quiet=True)
        if console is not None:
            warnings.simplefilter("ignore", DataWarning)  # the first process warns
        for each in begun:  # a run that cannot resume gives its error now, not after hours of training
            prepared(None, each, world=world, begun=True)
        summaries = [
            _train(None, each, Reporter(quiet, console), interrupt, world=world, begun=bool(seeds)).summary
            for each in runs
        ]
        interrupt.leave()
    if seeds is not None:
        Reporter(quiet, console).seeds(summaries)
    return 0


def _with_seeds(explicit: Mapping[str, Any], seeds: Sequence[int] | None) -> Sequence[Mapping[str, Any]]:
    """Return the settings of each run."""
    if seeds is None:
        return [explicit]
    if "out" not in explicit:
        return [{**explicit, "seed": seed} for seed in seeds]
    return [{**explicit, "out": str(Path(explicit["out"]) / f"seed-{seed}"), "seed": seed} for seed in seeds]


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
