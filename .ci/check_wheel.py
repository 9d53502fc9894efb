"""Build the wheel, install it outside the checkout, and use it from the root folder.

An editable install hides three faults. The wheel can miss a subpackage or data file. It can contain an
unwanted top-level package. Code can read files of the checkout.
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
    """Run a command; raise an error if it fails."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def expected_files() -> set[str]:
    """Return the path in the wheel of each committed file of the package."""
    command = ["git", "ls-files", "--", "lightcake_fast", *MAPPED]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = set()
    for path in listed:
        folder, _, rest = path.partition("/")
        if (ROOT / path).is_file():  # not the two symbolic links to folders
            files.add(f"{MAPPED.get(folder, folder)}/{rest}")
    return files


def check_contents(wheel: Path) -> None:
    """Check that the wheel has all committed files and no others."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    found = names - metadata
    missing, surplus = expected_files() - found, found - expected_files()
    if missing or surplus:
        sys.exit(
            f"{wheel.name}: expected the committed files, got {sorted(missing)} missing and "
            f"{sorted(surplus)} extra: change package-data or commit the files"
        )
    print(f"{wheel.name}: {len(found)} files, top level: {sorted({name.split('/')[0] for name in names})}")


def main() -> None:
    """Run all checks in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        # This builds the wheel from the source distribution, so it checks both.
        run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
        (wheel,) = (work / "dist").glob("*.whl")
        check_contents(wheel)

        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-qq", "--no-deps", wheel)
        # A path entry gives access to this environment's third-party packages. Python does not read the .pth
        # files in that folder, so the editable install of the checkout stays invisible.
        (site,) = (work / "venv").glob("lib/python*/site-packages")
        (site / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")

        run(python, "-I", "-c", IMPORT_ALL)
        flags = ["--dataset", "family", "--epochs", "1", "--out"]
        run(python, "-I", "-m", "lightcake_fast.train", *flags, work / "run")
        run(python.with_name("lightcake-fast"), "evaluate", work / "run")


if __name__ == "__main__":
    main()
