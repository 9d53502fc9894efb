"""Triples from wherever they are: arrays, lists, DataFrames, files, and the graphs of other libraries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.assembly import assemble
from lightcake_fast.data.formats import open_table
from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.data.names import FIELDS, Source, check_distinct, check_no_header, columns_by_name
from lightcake_fast.data.splitting import parse_shares
from lightcake_fast.errors import InputError

_ROWS = 1 << 16
_NO_ROWS = (str, bytes, dict, set, frozenset)  # that have no order, or another
WANTED = (
    "an array, list or DataFrame of (head, relation, tail), a file, a MultiDiGraph of networkx, a "
    "TriplesFactory of PyKEEN, or Data or HeteroData of PyTorch Geometric"
)


@dataclass
class Rows:
    """Triples of names that Python holds.

    Attributes:
        rows: Rows of (head, relation, tail).
        label: What messages call them.
        header: Not said: a header that a frame or list holds is told.
    """

    rows: Iterable[Sequence[Any]]
    label: str
    header: bool | None = None

    def place(self, row: int) -> str:
        """`label[row]`, for messages."""
        return f"{self.label}[{row}]"

    def notes(self) -> list[str]:
        """What was left out, in words: nothing."""
        return []

    def read(self) -> Iterator[list[str]]:
        """The names of a block of triples.

        Raises:
            TypeError: A row is a string, a set, a dictionary or no row, or a name is no string.
            InputError: A row has another number of names, or an empty one.
        """
        done, rows = 0, iter(self.rows)
        while block := list(islice(rows, _ROWS)):
            for row in block:
                if isinstance(row, _NO_ROWS) or not hasattr(row, "__len__"):
                    raise TypeError(f"{self.place(done)}: got {row!r}, wanted (head, relation, tail)")
                if len(row) != 3:
                    raise InputError(
                        f"{self.place(done)}: got {len(row)} names, wanted head, relation and tail"
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
            raise TypeError(f"{self.place(row)}: got {name!r} for the {FIELDS[field]}, wanted a string")
        if not name:
            raise InputError(f"{self.place(row)}: got an empty {FIELDS[field]}, wanted a name")
        return str(name)


@dataclass(frozen=True)
class Found:
    """A source, with the ids that its names have where they came from, if they have any."""

    source: Source
    entities: Sequence[str] | None = None
    relations: Sequence[str] | None = None


def graph_of(
    triples: Any,
    valid: Any,
    test: Any,
    *,
    split: Sequence[float] | str,
    seed: int,
    name: str | None,
    strip: bool,
    header: bool | None = None,
) -> KnowledgeGraph:
    """What `KnowledgeGraph.from_triples` documents."""
    if (valid is None) != (test is None):
        raise InputError("valid and test: got one of them, wanted both, or none to split the triples")
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
    """The source in what a user gave, whose first row is a header or not (see `Table`).

    Raises:
        TypeError: It is nothing that is known.
        InputError: It lacks what makes it a graph with relations.
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
        raise TypeError(f"{label}: got {type(triples).__name__}, wanted {WANTED}")
    return Found(Rows(triples, label))


def _ids(names: Sequence[str] | None, kind: str) -> dict[str, int] | None:
    if names is None:
        return None
    check_distinct(kind, names)
    return {name: number for number, name in enumerate(names)}


def _frame(frame: Any, label: str) -> Rows:
    """Columns called head, relation and tail, or three columns whatever they are called."""
    frame = columns_by_name(frame, FIELDS)
    if len(frame.columns) != 3:
        raise InputError(
            f"{label}: got columns {', '.join(map(str, frame.columns))}, wanted head, relation and tail"
        )
    return Rows(frame.itertuples(index=False, name=None), label)


def _parquet(path: Path) -> Rows:
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet is read by pandas and pyarrow: pip install pandas pyarrow"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    return _frame(frame, str(path))


def _networkx_rows(graph: Any, label: str) -> Iterator[tuple[Any, Any, Any]]:
    """Edges, whose relation is their attribute `relation`, or else their key."""
    if not (graph.is_directed() and graph.is_multigraph()):
        raise InputError(f"{label}: got a {type(graph).__name__}, wanted a MultiDiGraph")
    for head, tail, key, attributes in graph.edges(keys=True, data=True):
        yield head, attributes.get("relation", key), tail


def _from_pykeen(factory: Any, label: str) -> Found:
    """A factory's names, in the order of its ids; without names, its numbers."""
    entities, relations = (
        [labels[n] if labels else str(n) for n in range(count)]
        for labels, count in (
            (getattr(factory, "entity_id_to_label", None), factory.num_entities),
            (getattr(factory, "relation_id_to_label", None), factory.real_num_relations),
        )
    )
    return _numbered(factory.mapped_triples.numpy(force=True), entities, relations, label)


def _from_pyg(data: Any, label: str) -> Found:
    """Edges by `edge_type`; names are `entity_names` and `relation_names` if it has them, else numbers."""
    if getattr(data, "edge_type", None) is None:
        raise InputError(f"{label}: got Data without edge_type, wanted a relation for each edge")
    ends = _ends_of(data, label)
    relations = _array_of(data, "edge_type", label)
    if relations.shape != ends.shape[1:]:
        raise InputError(
            f"{label}: expected edge_type of shape ({ends.shape[1]},), got {relations.shape}: give each edge "
            "one relation number (edge_type.flatten() of a column, edge_type.argmax(1) of one-hot rows)"
        )
    entities = _names_of(data, "entity_names", data.num_nodes)
    names = _names_of(data, "relation_names", int(relations.max(initial=-1)) + 1)
    return _numbered(np.stack([ends[0], relations, ends[1]], 1), entities, names, label)


def _ends_of(store: Any, label: str) -> NDArray[Any]:
    """The `edge_index` of a graph or of an edge type, (2, E)."""
    ends = _array_of(store, "edge_index", label)
    if ends.ndim != 2 or len(ends) != 2:
        raise InputError(
            f"{label}: expected edge_index of shape (2, E), got {ends.shape}: put heads in its first row, "
            "tails in its second"
        )
    return ends


def _array_of(store: Any, field: str, label: str) -> NDArray[Any]:
    """A tensor of a graph or of an edge type, as an array."""
    tensor: Any = getattr(store, field, None)
    if not hasattr(tensor, "numpy"):
        got = "none" if tensor is None else f"a {type(tensor).__name__}"
        raise InputError(f"{label}: expected {field} as a tensor, got {got}: set {field}")
    array: NDArray[Any] = tensor.numpy(force=True)
    return array


def _names_of(data: Any, field: str, count: int) -> list[str]:
    """The names that a graph has, or numbers."""
    names = getattr(data, field, None)
    return [str(n) for n in range(count)] if names is None else list(names)


def _from_hetero(data: Any, label: str) -> Found:
    """Entities are `TYPE:NUMBER`; a relation is called as its edge type, in full where that is not enough."""
    start: dict[str, int] = {}
    entities: list[str] = []
    for kind in dict.fromkeys(kind for head, _, tail in data.edge_types for kind in (head, tail)):
        if kind not in data.node_types or data[kind].num_nodes is None:
            raise InputError(f"{label}: node type {kind!r} has neither num_nodes nor x, wanted its nodes")
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
    """Triples of numbers, whose names are known.

    Raises:
        InputError: They are no whole numbers, or some have no name.
    """
    if triples.dtype.kind not in "iu":
        raise InputError(f"{label}: got numbers of {triples.dtype}, wanted whole ones")
    for column, names in enumerate((entities, relations, entities)):
        numbers = triples[:, column]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
            got = f"{numbers.min()} to {numbers.max()}"
            raise InputError(f"{label}: got {FIELDS[column]} numbers {got}, wanted 0 to {len(names) - 1}")
    rows = (
        (entities[head], relations[relation], entities[tail]) for head, relation, tail in triples.tolist()
    )
    return Found(Rows(rows, label), entities, relations)
