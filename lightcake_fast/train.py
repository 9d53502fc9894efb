"""The main command: `python -m lightcake_fast.train`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lightcake_fast import cli
from lightcake_fast.data import load_dataset
from lightcake_fast.training.config import add_flags, resumed
from lightcake_fast.training.experiment import check
from lightcake_fast.training.interrupt import Interrupt
from lightcake_fast.training.loop import train
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter
from lightcake_fast.training.run_folder import RunFolder
from lightcake_fast.training.runtime import prepare_process

DESCRIPTION = "Train LightCAKE on a knowledge graph, and test how well it predicts the relation of a pair."
EPILOG = """\
examples:
  python -m lightcake_fast.train                              the generated genealogy, under a minute
  python -m lightcake_fast.train --dataset nell995            the best settings known for a public data set
  python -m lightcake_fast.train --dataset my/folder --score transe --layers 1 --dim 128
  python -m lightcake_fast.train --dataset ddb14 --preset paper --out runs/paper
  python -m lightcake_fast.train --resume runs/paper          go on after a stop of any kind
  python -m lightcake_fast.train --resume runs/paper --epochs 30
  python -m lightcake_fast.train --resume runs/mine --dataset moved/folder

Flags that are not given take the preset's values for the data set and score. Ctrl-C and SIGTERM save first.
Exit codes: 0 done, 1 out of memory or disk space, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.
"""


def make_parser() -> cli.ArgumentParser:
    """The parser of the command's flags."""
    parser = cli.ArgumentParser("python -m lightcake_fast.train", DESCRIPTION, EPILOG)
    parser.usage = "%(prog)s [--dataset NAME] [--score SCORE] [flags]"
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Train, or go on with a run.

    Raises:
        InputError: A flag, the data or the run folder is wrong.
        SystemExit: A signal came: 128 + its number, after saving.
    """
    explicit = vars(make_parser().parse_args(argv))
    del explicit["debug"]  # taken up by `cli.run`
    with Interrupt() as interrupt:
        if "resume" in explicit:
            run = RunFolder.open(Path(explicit["resume"]).expanduser())
            config = resumed(run.config, explicit).anchored()
            data = run.load_dataset(config)
        else:
            config = resolve(explicit)
            data = load_dataset(config.dataset, config.data_dir)
            config = config.anchored()
            check(config, data)
            run = RunFolder.create(config, data.name)
        with run:
            train(config, data, run, Reporter(config.quiet), interrupt)
        interrupt.leave()
    return 0


if __name__ == "__main__":
    prepare_process()
    sys.exit(cli.run(main))
