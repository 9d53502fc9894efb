"""Sources of triples: arrays, lists, DataFrames, files, and graphs of other libraries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.assembly import Assembled, assemble
from lightcake_fast.data.formats import open_table
from lightcake_fast.data.names import FIELDS, Source, check_distinct, check_no_header, columns_by_name
from lightcake_fast.data.splitting import parse_shares
from lightcake_fast.errors import InputError

_ROWS = 1 << 16
_NO_ROWS = (str, bytes, dict, set, frozenset)  # types without a (head, relation, tail) order
WANTED = (
    "an array, list or DataFrame of (head, relation, tail), a file path, a networkx MultiDiGraph, a PyKEEN "
    "TriplesFactory, or a PyTorch Geometric Data or HeteroData"
)


@dataclass
class Rows:
    """Triples of names in a Python object.

    Attributes:
        rows: Rows of (head, relation, tail).
        label: Name of the object in messages.
        header: Always None: a first row that looks like a header gives a warning.
    """

    rows: Iterable[Sequence[Any]]
    label: str
    header: bool | None = None

    def place(self, row: int) -> str:
        """`label[row]`, for messages."""
        return f"{self.label}[{row}]"

    def notes(self) -> list[str]:
        """An empty list: no rows are skipped."""
        return []

    def read(self) -> Iterator[list[str]]:
        """Yield blocks of names: head, relation, tail, head, relation, tail, ...

        Raises:
            TypeError: A row is not a sequence of names (a string, set or dictionary is not allowed), or a
                name is not a string.
            InputError: A row does not have three names, or has an empty name.
        """
        done, rows = 0, iter(self.rows)
        while block := list(islice(rows, _ROWS)):
            for row in block:
                if isinstance(row, _NO_ROWS) or not hasattr(row, "__len__"):
                    raise TypeError(
                        f"{self.place(done)}: expected (head, relation, tail), got {row!r}: "
                        "give each triple as a tuple or list"
                    )
                if len(row) != 3:
                    raise InputError(
                        f"{self.place(done)}: expected head, relation and tail, got {len(row)} names: "
                        "correct the row"
                    )
                done += 1
            names = list(chain.from_iterable(block))
            if not {type(name) for name in names} <= {str} or "" in names:
                names = [
                    self._checked(name, done - len(block) + n // 3, n % 3) for n, name in enumerate(names)
                ]
            yield names

    def _checked(self, name: Any, row: int, field: int) -> str:
        if not isinstance(name, str):
            raise TypeError(
                f"{self.place(row)}: expected a string, got {name!r} for the {FIELDS[field]}: convert it"
            )
        if not name:
            raise InputError(
                f"{self.place(row)}: expected a name, got an empty {FIELDS[field]}: add the name"
            )
        return str(name)


@dataclass(frozen=True)
class Found:
    """A source, with names by id if it defines ids."""

    source: Source
    entities: Sequence[str] | None = None
    relations: Sequence[str] | None = None


def read_sources(
    triples: Any,
    valid: Any,
    test: Any,
    *,
    split: Sequence[float] | str,
    seed: int,
    name: str | None,
    strip: bool,
    header: bool | None = None,
) -> Assembled:
    """Read train, valid and test (see `KnowledgeGraph.from_triples`)."""
    if (valid is None) != (test is None):
        raise InputError(
            "valid and test: expected both or neither, got one: add the other, "
            "or leave both out for a random split"
        )
    found = [find(triples, "triples", header)]
    if valid is not None:
        found += [find(valid, "valid", header), find(test, "test", header)]
    if name is None:
        name = Path(triples).name.partition(".")[0] if isinstance(triples, str | Path) else "triples"
    ids = (_ids(found[0].entities, "entities"), _ids(found[0].relations, "relations"))
    sources = [item.source for item in found]
    known = ("the entities of the triples", "the relations of the triples")
    return assemble(name, sources, *ids, ids_from=known, strip=strip, shares=parse_shares(split), seed=seed)


def find(triples: Any, label: str, header: bool | None = None) -> Found:
    """The source of a user's triples. `header` is an attribute of `Table`.

    Raises:
        TypeError: The type is unknown.
        InputError: The graph has no relations.
    """
    if isinstance(triples, str | Path):
        path = Path(triples).expanduser()
        if path.suffix.lower() != ".parquet":
            return Found(open_table(path, header))
        label = str(path)
    check_no_header(label, header)
    if isinstance(triples, str | Path):
        return Found(_parquet(path))
    if hasattr(triples, "mapped_triples"):
        return _from_pykeen(triples, label)
    if hasattr(triples, "edge_types") and hasattr(triples, "node_types"):
        return _from_hetero(triples, label)
    if hasattr(triples, "edge_index"):
        return _from_pyg(triples, label)
    if hasattr(triples, "is_multigraph"):
        return Found(Rows(_networkx_rows(triples, label), label))
    if hasattr(triples, "itertuples"):
        return Found(_frame(triples, label))
    if isinstance(triples, np.ndarray):
        triples = triples.tolist()
    if isinstance(triples, bytes | Mapping) or not isinstance(triples, Iterable):
        raise TypeError(f"{label}: expected {WANTED}, got {type(triples).__name__}: convert it")
    return Found(Rows(triples, label))


def _ids(names: Sequence[str] | None, kind: str) -> dict[str, int] | None:
    if names is None:
        return None
    check_distinct(kind, names)
    return {name: number for number, name in enumerate(names)}


def _frame(frame: Any, label: str) -> Rows:
    """Use the columns head, relation and tail, or the only three columns."""
    frame = columns_by_name(frame, FIELDS)
    if len(frame.columns) != 3:
        raise InputError(
            f"{label}: expected the columns head, relation and tail, got "
            f"{', '.join(map(str, frame.columns))}: rename or select columns"
        )
    return Rows(frame.itertuples(index=False, name=None), label)


def _parquet(path: Path) -> Rows:
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise InputError(
            f"{path}: expected pandas and pyarrow, got an import error: pip install pandas pyarrow"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path}: expected a readable file, got {error.strerror or error}: check path and permissions"
        ) from error
    return _frame(frame, str(path))


def _networkx_rows(graph: Any, label: str) -> Iterator[tuple[Any, Any, Any]]:
    """Edges as triples. The relation is the attribute `relation`, or the key without this attribute."""
    if not (graph.is_directed() and graph.is_multigraph()):
        raise InputError(f"{label}: expected a MultiDiGraph, got a {type(graph).__name__}: convert the graph")
    for head, tail, key, attributes in graph.edges(keys=True, data=True):
        yield head, attributes.get("relation", key), tail


def _from_pykeen(factory: Any, label: str) -> Found:
    """Names by id of a factory; without names, the ids become the names."""
    entities, relations = (
        [labels[n] if labels else str(n) for n in range(count)]
        for labels, count in (
            (getattr(factory, "entity_id_to_label", None), factory.num_entities),
            (getattr(factory, "relation_id_to_label", None), factory.real_num_relations),
        )
    )
    return _numbered(factory.mapped_triples.numpy(force=True), entities, relations, label)


def _from_pyg(data: Any, label: str) -> Found:
    """The triples of a PyTorch Geometric `Data` with `edge_type`.

    The attributes `entity_names` and `relation_names` give the names. Without them, the ids are the names.
    """
    if getattr(data, "edge_type", None) is None:
        raise InputError(f"{label}: expected Data with edge_type, got none: set edge_type to relation ids")
    ends = _ends_of(data, label)
    relations = _array_of(data, "edge_type", label)
    if relations.shape != ends.shape[1:]:
        raise InputError(
            f"{label}: expected edge_type of shape ({ends.shape[1]},), got {relations.shape}: give each edge "
            "one relation id (edge_type.flatten() of a column, edge_type.argmax(1) of one-hot rows)"
        )
    entities = _names_of(data, "entity_names", data.num_nodes)
    names = _names_of(data, "relation_names", int(relations.max(initial=-1)) + 1)
    return _numbered(np.stack([ends[0], relations, ends[1]], 1), entities, names, label)


def _ends_of(store: Any, label: str) -> NDArray[Any]:
    """The `edge_index` `[2, E]` of a graph or of an edge type."""
    ends = _array_of(store, "edge_index", label)
    if ends.ndim != 2 or len(ends) != 2:
        raise InputError(
            f"{label}: expected edge_index of shape (2, E), got {ends.shape}: put heads into row 0 and "
            "tails into row 1"
        )
    return ends


def _array_of(store: Any, field: str, label: str) -> NDArray[Any]:
    """A tensor of a graph or of an edge type, converted to an array."""
    tensor: Any = getattr(store, field, None)
    if not hasattr(tensor, "numpy"):
        got = "none" if tensor is None else f"a {type(tensor).__name__}"
        raise InputError(f"{label}: expected {field} as a tensor, got {got}: set {field}")
    array: NDArray[Any] = tensor.numpy(force=True)
    return array


def _names_of(data: Any, field: str, count: int) -> list[str]:
    """The names of a graph, or ids as names."""
    names = getattr(data, field, None)
    return [str(n) for n in range(count)] if names is None else list(names)


def _from_hetero(data: Any, label: str) -> Found:
    """Entities are `TYPE:NUMBER`. Relations are edge types; ambiguous ones are `HEAD__RELATION__TAIL`."""
    start: dict[str, int] = {}
    entities: list[str] = []
    for kind in dict.fromkeys(kind for head, _, tail in data.edge_types for kind in (head, tail)):
        if kind not in data.node_types or data[kind].num_nodes is None:
            raise InputError(
                f"{label}: expected num_nodes or x for node type {kind!r}, got neither: set num_nodes"
            )
    for kind in data.node_types:
        start[kind] = len(entities)
        entities += [f"{kind}:{number}" for number in range(data[kind].num_nodes)]
    short = [relation for _, relation, _ in data.edge_types]
    relations = [kind[1] if short.count(kind[1]) == 1 else "__".join(kind) for kind in data.edge_types]
    parts = [np.zeros((0, 3), np.int64)]
    for number, kind in enumerate(data.edge_types):
        ends = _ends_of(data[kind], f"{label}: edge type {kind!r}")
        middle = np.full(ends.shape[1], number)
        parts.append(np.stack([ends[0] + start[kind[0]], middle, ends[1] + start[kind[2]]], 1))
    return _numbered(np.concatenate(parts), entities, relations, label)


def _numbered(triples: Any, entities: Sequence[str], relations: Sequence[str], label: str) -> Found:
    """Triples of ids with known names.

    Raises:
        InputError: The ids are not integers, or an id has no name.
    """
    if triples.dtype.kind not in "iu":
        raise InputError(f"{label}: expected integer ids, got {triples.dtype}: convert them")
    for column, names in enumerate((entities, relations, entities)):
        numbers = triples[:, column]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
            got = f"{numbers.min()} to {numbers.max()}"
            raise InputError(
                f"{label}: expected {FIELDS[column]} ids from 0 to {len(names) - 1}, got {got}: correct them"
            )
    rows = (
        (entities[head], relations[relation], entities[tail]) for head, relation, tail in triples.tolist()
    )
    return Found(Rows(rows, label), entities, relations)
