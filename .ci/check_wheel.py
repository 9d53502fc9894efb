"""Build the wheel, install it away from the checkout, and use it from the root folder.

Catches what an editable install hides: a subpackage or data file left out of the wheel, a top-level
import package that must not be there, and code that reads files of the checkout.
"""

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAPPED = {"kernels": "lightcake_fast/kernels", "reference": "lightcake_fast/reference"}

IMPORT_ALL = """
import importlib, pkgutil, sys
import lightcake_fast
assert lightcake_fast.__file__.startswith(sys.prefix), lightcake_fast.__file__
modules = [m.name for m in pkgutil.walk_packages(lightcake_fast.__path__, "lightcake_fast.")]
for name in modules:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(f"imported {len(modules)} modules from {lightcake_fast.__path__[0]}")
"""


def run(*command: str | Path, cwd: Path | str = "/") -> None:
    """Run a command and stop at its failure."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def expected_files() -> set[str]:
    """Give every committed file of the package, by its place in the wheel."""
    command = ["git", "ls-files", "--", "lightcake_fast", *MAPPED]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = set()
    for path in listed:
        folder, _, rest = path.partition("/")
        if (ROOT / path).is_file():  # the two links to folders are not files
            files.add(f"{MAPPED.get(folder, folder)}/{rest}")
    return files


def check_contents(wheel: Path) -> None:
    """Compare the wheel's files with the committed ones, both ways."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    found = names - metadata
    missing, surplus = expected_files() - found, found - expected_files()
    if missing or surplus:
        sys.exit(f"{wheel.name}: missing {sorted(missing)}, not committed {sorted(surplus)}")
    print(f"{wheel.name}: {len(found)} files, top level: {sorted({name.split('/')[0] for name in names})}")


def main() -> None:
    """Run all checks in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        # By way of the source distribution, which so is checked as well.
        run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
        (wheel,) = (work / "dist").glob("*.whl")
        check_contents(wheel)

        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-qq", "--no-deps", wheel)
        # Third-party packages come from this environment by a plain path entry, whose own .pth files,
        # and with them the editable install of the checkout, Python does not read.
        (site,) = (work / "venv").glob("lib/python*/site-packages")
        (site / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")

        run(python, "-I", "-c", IMPORT_ALL)
        flags = ["--dataset", "family", "--epochs", "1", "--out"]
        run(python, "-I", "-m", "lightcake_fast.train", *flags, work / "run")
        run(python.with_name("lightcake-fast"), "evaluate", work / "run")


if __name__ == "__main__":
    main()
