"""The whole package: cost and side effects of an import, and imports between layers."""

import ast
import importlib
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import lightcake_fast

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lightcake_fast"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in (PACKAGE, PACKAGE / "kernels", PACKAGE / "reference")  # rglob does not follow links
    for path in folder.rglob("*.py")
}
OPERATORS = (
    "lightcake_fast.backends",
    "lightcake_fast.ops",
    "lightcake_fast.rows",
    "lightcake_fast.segments",
    "lightcake_fast.scores",
    "lightcake_fast.sharding.operator",
)
BACK_ENDS = ("lightcake_fast.kernels", "lightcake_fast.reference")
ARRAYS = {"torch", "triton", "numba", "llvmlite", "numpy"}  # numba uses llvmlite for single instructions

# Drawing imports the `plots` extra. Answers import pandas to become data frames.
OPTIONAL = {
    "lightcake_fast.data.knowledge_graph": {"pykeen", "torch_geometric"},
    "lightcake_fast.data.sources": {"pandas"},
    "lightcake_fast.inference.tabular": {"pandas"},
    "lightcake_fast.inference.figure": {"matplotlib"},
    "lightcake_fast.inference.fonts": {"matplotlib"},
    "lightcake_fast.search": {"optuna"},
    "lightcake_fast.sharding.partition": {"pymetis"},
}


def runtime_imports(source: str, module: str) -> set[str]:
    """Return the absolute names that a module imports at runtime, without `__version__`."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                visit(statement)
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{module}: import by full names"
            parents = module.split(".")[: -node.level] if node.level else []
            source_module = ".".join([*parents, node.module])
            # `from package import module` imports a module, `from module import thing` does not
            for alias in node.names:
                if alias.name == "__version__":
                    continue
                full = f"{source_module}.{alias.name}"
                names.add(full if full in MODULES else source_module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return names


IMPORTS = {
    name: runtime_imports(path.read_text(encoding="utf-8"), name) for name, path in sorted(MODULES.items())
}


def run_python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter from the checkout, and return its output."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("module", [name for name in IMPORTS if not name.startswith(BACK_ENDS)])
def test_only_operators_choose_back_ends(module: str) -> None:
    used = {name for name in IMPORTS[module] if name.startswith(BACK_ENDS)}
    used.discard("lightcake_fast.kernels.compiling")  # only a clock
    if module == "lightcake_fast.graph":
        used.discard("lightcake_fast.kernels.plan")  # order of the work, built with the graph
    if module == "lightcake_fast.process":
        used -= {"lightcake_fast.kernels.cpu_memory", "lightcake_fast.kernels.cpu_openmp"}  # CPU settings
    if module not in OPERATORS:
        assert used == set()


@pytest.mark.parametrize("module", [name for name in IMPORTS if name.startswith(BACK_ENDS)])
def test_back_ends_import_only_array_libraries(module: str) -> None:
    own = module.split(".")[1]
    for imported in IMPORTS[module]:
        top = imported.split(".")[0]
        allowed = top in ARRAYS or top in sys.stdlib_module_names
        # pure arithmetic, shared by all back ends
        allowed |= imported == "lightcake_fast.kernels.scores"
        assert allowed or imported.startswith(f"lightcake_fast.{own}"), f"{module} imports {imported}"


@pytest.mark.parametrize("module", IMPORTS)
def test_every_third_party_import_is_declared(module: str) -> None:
    required = metadata.requires("lightcake_fast") or []
    declared = {line.split(";")[0].split(">")[0].strip() for line in required if "extra ==" not in line}
    declared |= {"llvmlite"} if "numba" in declared else set()  # numba requires the matching release
    declared |= OPTIONAL.get(module, set())
    for imported in IMPORTS[module]:
        top = imported.split(".")[0]
        assert top in declared or top == "lightcake_fast" or top in sys.stdlib_module_names, (
            f"{module} imports {imported}, which pyproject.toml does not require"
        )


@pytest.mark.parametrize("name", BACK_ENDS)
def test_back_ends_are_flat_folders(name: str) -> None:
    folder = ROOT / name.split(".")[1]
    assert (PACKAGE / folder.name).resolve() == folder
    assert [path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"] == []


def test_version_equals_metadata() -> None:
    assert lightcake_fast.__version__ == metadata.version("lightcake_fast")
    assert f"\nversion: {lightcake_fast.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", lightcake_fast.__all__)
def test_public_names_exist_and_have_docstrings(name: str) -> None:
    public = getattr(lightcake_fast, name)
    assert isinstance(public, str) or public.__doc__


def test_dir_lists_names_before_import() -> None:
    listed = json.loads(run_python("import json, lightcake_fast; print(json.dumps(dir(lightcake_fast)))"))
    assert set(listed) >= set(lightcake_fast.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("lightcake_fast").no_such_name  # noqa: B018


def test_only_the_package_is_installed_at_top_level() -> None:
    # -I removes the working folder from the path, so that only installed packages are found
    found = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            "import importlib.util, json\n"
            "specs = {n: importlib.util.find_spec(n) for n in ('kernels', 'reference', 'bench', 'tests')}\n"
            "print(json.dumps({n: s.origin for n, s in specs.items() if s is not None}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ours = {name: origin for name, origin in json.loads(found).items() if str(origin).startswith(str(ROOT))}
    assert ours == {}


def test_import_loads_no_compiler() -> None:
    code = """
import json, sys
import torch
before = set(sys.modules)
import lightcake_fast
import lightcake_fast.ops
brought = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(brought & {"numba", "triton", "rich", "matplotlib"})))
"""
    assert json.loads(run_python(code)) == []


def test_import_changes_no_global_state() -> None:
    code = """
import json, locale, logging, os, random, signal, sys, threading, warnings
import numpy, torch, rich.progress, rich.table, safetensors.torch

def state():
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()],
        "grad mode": torch.is_grad_enabled(),
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark],
        "matmul precision": torch.get_float32_matmul_precision(),
        "flush denormal": (torch.tensor(1e-40) * torch.tensor(1.0)).item() == 0.0,
        "random": [hash(random.getstate()), numpy.random.get_state()[1].tolist()],
        "torch random": torch.get_rng_state().tolist(),
        "numpy errors": [numpy.geterr(), repr(numpy.geterrcall()), repr(numpy.get_printoptions())],
        "warnings": [repr(entry) for entry in warnings.filters],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "logging": [logging.root.level, repr(logging.root.handlers)],
        "process": [os.getcwd(), dict(os.environ), sys.path, sys.getrecursionlimit(), locale.setlocale(0)],
        "hooks": [repr(sys.excepthook), repr(sys.stdout), repr(sys.stderr)],
    }

before = state()
for name in sys.argv[1:]:
    __import__(name)
after = state()
print(json.dumps([key for key in before if before[key] != after[key]]))
"""
    names = [name for name in MODULES if not name.startswith(BACK_ENDS)]
    assert json.loads(run_python(code, *names)) == []


def test_oldest_tested_versions_are_the_lower_bounds() -> None:
    bounds = re.findall(
        r'^    "([a-z]+)>=([\d.]+)(?:"|; sys_platform)', (ROOT / "pyproject.toml").read_text(), re.M
    )
    pins = re.findall(r"^([a-z]+)==([\d.]+)$", (ROOT / ".ci" / "oldest.txt").read_text(), re.M)
    assert len(pins) == 6
    assert dict(bounds[: len(pins)]) == {name: re.sub(r"(\.0)+$", "", version) for name, version in pins}


def test_prediction_does_not_import_torch_compiler(unbroken: Path) -> None:
    code = f"""
import sys
from lightcake_fast.evaluate import main
main([{str(unbroken)!r}])
assert "torch._dynamo" not in sys.modules
"""
    run_python(code)


def spin_count(*command: str) -> str:
    """Return how often an idle OpenMP thread looks for work, as OpenMP prints at load time."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.partition("GOMP_SPINCOUNT = ")[2].split("\n")[0]


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP tells its settings")
def test_idle_openmp_threads_of_a_command_sleep() -> None:
    for words in (
        ["-m", "lightcake_fast.export"],
        ["-mlightcake_fast.export"],
        ["-um", "lightcake_fast.export"],
    ):
        assert spin_count(*words, "--help") == "'0'"
    assert spin_count("-c", "import lightcake_fast, torch") != "'0'"
    assert spin_count("-c", "import lightcake_fast; lightcake_fast.prepare_process()") == "'0'"


KEEPS = """
import re, lightcake_fast
from pathlib import Path
lightcake_fast.prepare_process()
import torch
def left_of(mib):
    def resident():
        return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10
    before = resident()
    torch.ones(mib << 18)
    return resident() - before
print(left_of(1), left_of(128), left_of(512))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc is told what to keep")
def test_prepared_process_keeps_only_small_freed_memory() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    _, scores, table = map(float, done.stdout.split())
    assert scores == pytest.approx(128, abs=16)
    assert abs(table) < 16


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "other.tool"],
        ["-mother.tool"],
        ["-m", "other.tool", "-m", "lightcake_fast.train"],
        ["tool.py", "-m", "lightcake_fast.train"],
    ],
    ids=" ".join,
)
def test_import_keeps_ctrl_c_and_environment_of_other_programs(words: list[str], tmp_path: Path) -> None:
    told = "import os, signal\n"
    told += "signal.signal(2, signal.default_int_handler)\n"  # a background job inherits SIG_IGN
    told += "import lightcake_fast\n"
    told += "print(signal.getsignal(2).__name__, 'OMP_WAIT_POLICY' in os.environ)"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text(told)
    (tmp_path / "other" / "tool.py").touch()
    (tmp_path / "tool.py").write_text(told)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "default_int_handler False\n"
