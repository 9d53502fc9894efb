"""Commands and their list: `lightcake-fast COMMAND`, or `python -m lightcake_fast COMMAND`."""

import runpy
import sys
from collections.abc import Sequence

from lightcake_fast import __version__, cli

COMMANDS = {
    "train": "train a model on a data set",
    "data": "print the statistics of a data set",
    "predict": "predict relations or entities, and explain them",
    "evaluate": "print the metrics of a run, also by relation or degree",
    "export": "write refined embeddings for other programs",
    "search": "search hyperparameters on the validation split",
    "partition": "divide a data set among several processes",
}


def main(argv: Sequence[str]) -> None:
    """Run a command as `python -m` runs its module, or list the commands."""
    if argv and argv[0] in COMMANDS:
        sys.argv[1:] = argv[1:]
        runpy.run_module(f"lightcake_fast.{argv[0]}", run_name="__main__")
        return
    parser = cli.ArgumentParser("python -m lightcake_fast", "Run a command, or list the commands.", _list())
    parser.usage = "%(prog)s [COMMAND [flags]]"
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), metavar="COMMAND", help="see below")
    parser.add_argument("--version", action="version", version=f"lightcake_fast {__version__}")
    parser.parse_args(argv)
    print(f"lightcake_fast {__version__}\n\n{_list()}")


def _list() -> str:
    lines = (f"  python -m lightcake_fast.{name:<9} {text}" for name, text in COMMANDS.items())
    return cli.as_typed("\n".join(["commands, each with --help:", *lines]))


def script() -> int:
    """Entry point of the installed `lightcake-fast`."""
    return cli.run(main)


if __name__ == "__main__":
    sys.exit(script())
