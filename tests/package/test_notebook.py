"""The notebook of the documents runs from its first cell to its last, and shows what it printed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import HANG

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    nbformat, nbclient = peer("nbformat"), peer("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [[output["output_type"] for output in cell.get("outputs", [])] for cell in notebook.cells]
    nbclient.NotebookClient(
        notebook,
        timeout=HANG,
        startup_timeout=HANG,
        coalesce_streams=True,  # the number of parts of a cell's text depends on the load
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    again = [
        [output["output_type"] for output in cell.get("outputs", []) if output.get("name") != "stderr"]
        for cell in notebook.cells
    ]
    assert again == shown
    assert (tmp_path / "films.safetensors").exists()
