"""Training, from Python as `lightcake_fast.train(...)` or typed as `python -m lightcake_fast.train`."""

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
from lightcake_fast.training.arguments import add_flags, resumed
from lightcake_fast.training.config import READING, TrainingConfig, fields
from lightcake_fast.training.experiment import check
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.loop import Callback, train_to_end
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import own_numerics
from lightcake_fast.training.settings_file import read_settings
from lightcake_fast.training.sharded import load_share, with_partition

DESCRIPTION = "Train LightCAKE on a knowledge graph, and test how well it predicts relations, or entities."
EPILOG = """\
examples:
  python -m lightcake_fast.train                              the generated genealogy, under a minute
  python -m lightcake_fast.train --dataset nell995            the best settings known for a public data set
  python -m lightcake_fast.train --dataset my/folder --score transe --layers 1 --dim 128
  python -m lightcake_fast.train --score mymodule:MINE        a score of your own (docs/architecture.md)
  python -m lightcake_fast.train --dataset fb15k-237 --task entity    which entity, rather than which relation
  python -m lightcake_fast.train --dataset ddb14 --preset paper --out runs/paper
  python -m lightcake_fast.train --dataset ddb14 --seeds 0,1,2    the metrics with their deviation
  python -m lightcake_fast.train --resume runs/paper          go on after a stop of any kind
  python -m lightcake_fast.train --resume runs/paper --epochs 30
  python -m lightcake_fast.train --resume runs/mine --dataset moved/folder
  torchrun --nproc-per-node 4 -m lightcake_fast.train --dataset my/folder     by 4 processes (docs/scale.md)

Flags that are not given take the preset's values for the data set and score. Ctrl-C and SIGTERM save first;
a third Ctrl-C aborts the save.
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
        data: A data set by its name, folder or file (see `load_dataset`), or one that is at hand: a
            `KnowledgeGraph`, or what its `from_triples` takes, split by `split`. None takes the generated
            genealogy, or with `resume` the run's own.
        callbacks: One function or several, called one after another when an epoch ends, with its record: a
            dict of `epoch`, `loss`, `valid` (metrics), `seconds` and `triples_per_second`. What one raises
            ends the training.
        settings: The flags of `python -m lightcake_fast.train`, by their names: `score="transe", epochs=30`.
            Those not given take the preset's values; of `score="MODULE:NAME"` the code is run. With `out` or
            `resume` there is a run folder, else nothing stays on disk; `quiet` prints nothing at all.

    Raises:
        InputError: A setting, the data or the run folder is wrong, or the training diverged.
        MemoryError: Memory ran out.
        TypeError: There is no such setting, or `data` or a callback is of another kind.
    """
    explicit = checked_settings("train", settings, data)
    if named_by_module(str(settings.get("score"))):
        import_score(settings["score"])  # named by the caller: a run folder's is not imported
    called = _several(callbacks)
    speed_up()
    reporter = Reporter(console=Console(quiet=bool(settings.get("quiet"))))
    with own_numerics(), TemporaryDirectory(prefix="lightcake_fast-") as passing:
        if explicit.keys() & {"out", "resume"}:
            return _train(data, explicit, reporter, Interrupt(), called)
        result = _train(data, {**explicit, "out": passing}, reporter, Interrupt(), called, kept=False)
        _ = result.model  # read while the folder is there
    return result


def _several(callbacks: Any) -> tuple[Callback, ...]:
    given = (callbacks,) if callable(callbacks) else callbacks or ()
    given = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(map(callable, given)):
        raise TypeError(f"callbacks: got {callbacks!r}, wanted a function or several")
    return given


def checked_settings(function: str, settings: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """The settings that a function of Python got beside `data`, as flags have them.

    Raises:
        TypeError: There is no such setting.
    """
    known = [field.name for field, _, _ in fields() if field.name != "dataset"]
    explicit = {}
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"{function}() has no setting {name!r}{did_you_mean(name, known)}")
        if name == "split" and isinstance(data, str | Path | None) and isinstance(value, Iterable):
            explicit[name] = value if isinstance(value, str) else ",".join(map(str, value))
        elif value is not None or name not in ("out", "resume"):
            explicit[name] = str(value) if isinstance(value, PurePath) else value
    return explicit


def at_hand(data: Any, options: Mapping[str, Any]) -> KnowledgeGraph:
    """A data set that is no file, from what `train` takes, with the options in `READING`.

    Raises:
        InputError: A graph is not what a reader would make, or has these options; see also
            `KnowledgeGraph.from_triples`.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(data, KnowledgeGraph):
        return KnowledgeGraph.from_triples(data, **options)
    asked = [name for name, value in options.items() if value is not False]
    if asked:
        raise InputError(f"{', '.join(asked)}: of a KnowledgeGraph, which has its splits and names")
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
    """Train what the settings `explicit` describe, in a run folder that is `kept` or not.

    With a `world` that torchrun started, this process has a share of the data set. With `begun`, the run may
    have been: it goes on.
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
    """What a training starts from: configuration, data set and run folder, new or to go on with.

    Args:
        data: See `train`.
        explicit: The settings given.
        kept: Whether the run folder stays.
        world: All processes that torchrun started, of which this one gets a share of the data set.
        begun: Go on with a run of the same settings where their folder holds one.

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
    """The data set, or this process's share of it."""

    def whole() -> KnowledgeGraph:
        if run is not None:
            return run.load_dataset(config)
        return load_dataset(config.dataset, **config.reading())

    if world is not None:
        return load_share(config, world, whole)
    if config.partition is not None:
        raise InputError("partition: is for several processes: wanted torchrun, or no --partition")
    return whole()


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.train", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s [--dataset NAME] [--score SCORE] [flags]"
    parser.leave_to_help_all(add_flags(parser))
    several = parser.add_argument_group("several runs and settings from a file")
    several.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="file with settings by name: .toml, or a run's config.json; flags given win (default: none)",
    )
    several.add_argument(
        "--seeds",
        metavar="S,S,...",
        type=_seeds,
        help="seeds of several runs, in place of --seed: one run per seed, in DIR/seed-S under --out DIR, "
        "then mean and deviation; after a stop the same command goes on (default: one run of --seed)",
    )
    return parser


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    seeds = [int(word) for word in words if word.isascii() and word.isdigit()]
    if len(seeds) < len(words) or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted different whole numbers, as in 0,1,2")
    return seeds


def main(argv: Sequence[str]) -> int:
    """Train, or go on with a run.

    Raises:
        InputError: A flag, the data or the run folder is wrong.
        SystemExit: A signal came: 128 + its number, after saving.
    """
    explicit = vars(make_parser().parse_args(argv))
    del explicit["debug"]  # taken up by `cli.run`
    if named_by_module(explicit.get("score", "")):
        import_score(explicit["score"])  # typed here: a file's is not imported
    file, seeds = explicit.pop("config"), explicit.pop("seeds")
    for flag, wrong in (("--config", file), ("--seeds", seeds)):
        if wrong is not None and "resume" in explicit:
            raise InputError(f"{flag} is for new runs: wanted it without --resume")
    if seeds is not None and "seed" in explicit:
        raise InputError("got --seed and --seeds, wanted one of them")
    if file is not None:
        explicit = {**read_settings(file.expanduser()), **explicit}
    quiet = explicit.get("quiet", False)
    runs = _with_seeds(explicit, seeds)
    # the same for all processes, none of which makes a folder before they have met
    begun = [each for each in runs if seeds and "out" in each and RunFolder.is_at(Path(each["out"]))]
    with joined() as world, Interrupt(abortable=world is None) as interrupt:
        console = None if world is None or world.first else Console(quiet=True)
        if console is not None:
            warnings.simplefilter("ignore", DataWarning)  # the first process tells
        for each in begun:  # what cannot go on is found before hours of training
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
    """The settings of each run."""
    if seeds is None:
        return [explicit]
    if "out" not in explicit:
        return [{**explicit, "seed": seed} for seed in seeds]
    return [{**explicit, "out": str(Path(explicit["out"]) / f"seed-{seed}"), "seed": seed} for seed in seeds]


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
