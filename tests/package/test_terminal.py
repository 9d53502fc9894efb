"""Output of the commands: encodings, closed streams, missing readers and unusual widths."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.table import Table

from lightcake_fast import cli, terminal
from lightcake_fast.errors import InputError
from tests.support.processes import signalled

PRINTS = """
import sys
import time
from rich.table import Table
from lightcake_fast import cli
from lightcake_fast.terminal import Console

def main(arguments):
    if "fail" in arguments:
        raise cli.InputError("wrong → 東京")
    if "rich" in arguments:
        for _ in range(20_000):
            Console().print("one line", soft_wrap=True)
    else:
        print("one line\\n" * 20_000)

sys.exit(cli.run(main))
"""


HELP = "import sys; from lightcake_fast import cli; "
HELP += "sys.exit(cli.run(cli.ArgumentParser('p', 'd').parse_args))"


def command(
    arguments: str, redirected: str = "", code: str = PRINTS, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run code in a shell. A pipeline ends with the exit code of its failed part."""
    line = f'set -o pipefail; "$PYTHON" -c "$CODE" {arguments} {redirected}'
    values = {**os.environ, "PYTHON": sys.executable, "CODE": code, "PYTHONUNBUFFERED": "", **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=values)


@pytest.mark.parametrize("how", ["rich", "print"])
def test_closed_reader_gives_exit_code_141(how: str) -> None:
    done = command(how, "| head -n 1")
    assert (done.returncode, done.stdout, done.stderr) == (141, "one line\n", "")


def test_help_for_closed_reader() -> None:
    reader_gone = "import select; poll = select.poll(); poll.register(1, 0); poll.poll()\n"
    done = command("--help", "| true", reader_gone + HELP)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("how", ["rich", "print"])
def test_closed_streams_are_ignored(how: str) -> None:
    done = command(how, ">&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert command("fail", ">&-").returncode == command("fail", "2>&-").returncode == 2
    assert command("fail", "2>&-").stdout == "", "what stderr was to get is not for stdout"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("how", ["rich", "print"])
def test_full_disk_behind_stdout_gives_one_line(how: str) -> None:
    done = command(how, "> /dev/full")
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_error_is_printed_in_any_encoding(encoding: str) -> None:
    done = command("fail", PYTHONIOENCODING=encoding)
    shown = "wrong → 東京" if encoding == "utf-8" else r"wrong -> \u6771\u4eac"
    assert (done.returncode, done.stderr) == (2, f"error: {shown}\n")


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], io.BytesIO]:
    """Replace stdout by a stream with an encoding, and return its bytes."""

    def replace(encoding: str) -> io.BytesIO:
        file = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(file, encoding=encoding))
        return file

    return replace


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_names_are_printed_in_any_encoding(stdout: Callable[[str], io.BytesIO], encoding: str) -> None:
    file = stdout(encoding)
    names = ["naïve", "東京", "a → b", "lone \udcff", "\x85"]

    def main(_: object) -> None:
        table = Table("name")
        for name in names:
            table.add_row(name)
        terminal.Console().print(table)
        print(terminal.json_line(names))

    assert cli.run(main, []) == 0
    *_, line = file.getvalue().decode(encoding).split("\n")[:-1]
    assert json.loads(line) == names


def test_text_is_shown_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]no markup[/] :smile: 12 " + "long " * 100
    terminal.Console().print(Table(text.strip()))
    assert text.strip() in capsys.readouterr().out, "neither markup nor emoji codes, and whole in a pipe"


def test_terminal_with_zero_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    file = io.StringIO()
    console = terminal.Console(file=file, force_terminal=True)
    console.print("text")
    assert console.width >= 20
    assert "text" in file.getvalue()


def test_error_after_unread_output(stdout: Callable[[str], io.BytesIO]) -> None:
    def main(_: object) -> None:
        print("row")
        raise InputError("the next row is wrong")

    file = stdout("utf-8")
    assert cli.run(main, []) == 2
    assert file.getvalue() == b"row\n", "what came before the error is not lost"


@pytest.fixture
def _heard() -> Iterator[None]:
    """Enable Ctrl-C for child processes, even if the parent of the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_ctrl_c_during_imports_shows_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightcake_fast.evaluate", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **signalled(tmp_path, signal.SIGINT, ["import"], "torch.nn")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.usefixtures("_heard")
def test_only_commands_change_the_ctrl_c_handler() -> None:
    code = "import signal, lightcake_fast; print(signal.getsignal(2) is signal.default_int_handler)"
    assert command("", code=code).stdout == "True\n"
    code = "import signal, sys; from lightcake_fast import cli; "
    code += "signal.signal(2, signal.SIG_DFL); cli.run(lambda _: print(signal.getsignal(2).__name__))"
    assert command("", code=code).stdout == "default_int_handler\n"
