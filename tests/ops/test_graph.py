"""The context graph: its valid inputs, and the order of work of the fused passes."""

import warnings
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import plan as plans
from lightcake_fast.kernels.plan import (
    ENTITY_CHUNK,
    LONGEST_TASK,
    RELATION_CHUNK,
    TASK_COST,
    Plan,
    gpu_relation_chunk,
)
from lightcake_fast.ops import context_layer
from tests.support.comparison import assert_bitwise_equal
from tests.support.graphs import CPU_GRAPHS, layer_inputs

OFFSETS = ("relation_chunk", "relation_part", "entity_chunk", "entity_task", "cut_slot")


def check_plan(
    graph: ContextGraph, relation_chunk: int = RELATION_CHUNK, entity_chunk: int = ENTITY_CHUNK
) -> None:
    """Check that chunks up to these lengths cover every triple and every row exactly once."""
    plan = Plan(*(field.long() for field in graph.plan))
    check_orders(graph, plan)
    check_relation_chunks(graph, plan, relation_chunk)
    check_entity_chunks(graph, plan, entity_chunk)


def check_orders(graph: ContextGraph, plan: Plan) -> None:
    """Check that both orders are sorted permutations, and that each position leads to its triple."""
    count, (heads, relations, tails) = graph.num_triples, graph.context_triples
    assert_bitwise_equal(plan.triple.sort().values, torch.arange(count), name="relation order")
    records = plan.context_record
    assert_bitwise_equal(records.sort().values, torch.arange(2 * count), name="records")
    given = torch.stack([plan.triple, plan.triple + count], 1).reshape(-1)  # a triple, then its inverse
    by_head = given[records]
    for name, actual, expected in (
        ("head", plan.head, heads[plan.triple]),
        ("tail", plan.tail, tails[plan.triple]),
        ("context_relation", plan.context_relation, relations[by_head]),
        ("context_tail", plan.context_tail, tails[by_head]),
        ("heads of head order", heads[by_head], heads.sort().values),
        ("relations of relation order", relations[plan.triple], relations[:count].sort().values),
    ):
        assert_bitwise_equal(actual, expected, name=name)


def check_relation_chunks(graph: ContextGraph, plan: Plan, longest: int) -> None:
    """Check that chunks cover relation order, one relation each, and are a row's parts in order."""
    lengths, rows = plan.relation_chunk.diff(), plan.relation_chunk_row
    relations = graph.triples[:, 1]
    assert plan.relation_chunk[0] == 0
    assert (lengths <= longest).all()
    assert_bitwise_equal(rows.repeat_interleave(lengths), relations[plan.triple], name="relation chunks")
    assert_bitwise_equal(plan.relation_row, torch.arange(2 * graph.num_relations), name="relation rows")
    parts = torch.cat([rows, rows + graph.num_relations])
    owners = plan.relation_row.repeat_interleave(plan.relation_part.diff())
    assert_bitwise_equal(owners, parts, name="relation parts")


def check_entity_chunks(graph: ContextGraph, plan: Plan, longest: int) -> None:
    """Check that chunks cover head order, one entity each.

    Only cut rows have parts, and tasks cover the chunks.
    """
    lengths, rows, slots = plan.entity_chunk.diff(), plan.entity_chunk_row, plan.entity_chunk_slot
    heads = graph.context_triples[0]
    assert plan.entity_chunk[0] == 0
    assert (lengths <= longest).all()
    assert_bitwise_equal(rows.repeat_interleave(lengths), heads.sort().values, name="entity chunks")
    degrees = torch.bincount(heads, minlength=graph.num_entities)
    pieces = (-(-degrees // longest)).clamp_min(1)  # an empty row has a chunk, which writes the row
    assert_bitwise_equal(torch.bincount(rows, minlength=graph.num_entities), pieces, name="chunks a row")
    cut = torch.nonzero(pieces > 1).squeeze(1)
    assert_bitwise_equal(plan.cut_row, cut, name="cut rows")
    assert_bitwise_equal(plan.cut_slot, torch.cat([torch.zeros(1).long(), pieces[cut].cumsum(0)]))
    assert (slots[pieces[rows] == 1] == -1).all()
    assert_bitwise_equal(slots[pieces[rows] > 1], torch.arange(int(plan.cut_slot[-1])), name="slots")
    assert plan.entity_task[0] == 0
    assert plan.entity_task[-1] == len(rows)
    assert (plan.entity_task.diff() > 0).all()
    for what, bounds in (("triples", plan.entity_chunk[plan.entity_task]), ("chunks", plan.entity_task)):
        assert (bounds.diff() <= LONGEST_TASK).all(), f"the passes keep numbers of a task's {what}"


@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_plan(name: str) -> None:
    check_plan(layer_inputs(name, 1, torch.float32)[2])


def draw_triples(data: st.DataObject) -> tuple[torch.Tensor, int, int]:
    """Draw triples [T, 3], often with duplicates, and N and R."""
    entities, relations = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    ids = st.tuples(*(st.integers(0, n - 1) for n in (entities, relations, entities)))
    triples = torch.tensor(data.draw(st.lists(ids, max_size=60)), dtype=torch.int64).view(-1, 3)
    return triples, entities, relations


@settings(max_examples=100)
@given(data=st.data())
def test_plan_of_random_graphs(data: st.DataObject) -> None:
    triples, entities, relations = draw_triples(data)
    chunks = {name: data.draw(st.integers(1, 9), label=name) for name in ("RELATION_CHUNK", "ENTITY_CHUNK")}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in chunks.items():
            patch.setattr(plans, name, size)
        graph = ContextGraph.from_triples(triples, entities, relations)
        _ = graph.plan
    check_plan(graph, *chunks.values())


@settings(max_examples=100)
@given(data=st.data())
def test_orders_equal_lexsort(data: st.DataObject) -> None:
    """The passes add in these orders. Bitwise equal results also depend on the order of ties."""
    triples, num_entities, num_relations = draw_triples(data)
    h, r, t = triples.numpy().T
    graph = ContextGraph.from_triples(triples, num_entities, num_relations)
    distinct = [
        np.array([len(np.unique(ids[r == relation])) for relation in range(num_relations)]) for ids in (h, t)
    ]
    tail_first = (distinct[1] < distinct[0])[r]
    inner, outer = np.where(tail_first, h, t), np.where(tail_first, t, h)
    by_relation = np.lexsort((inner, outer, r))
    heads, relations, tails = (ids.numpy() for ids in graph.context_triples)
    by_head = np.lexsort((tails, relations, heads))
    record = np.empty(len(heads), np.int64)
    record[np.concatenate([by_relation, by_relation + len(h)])] = np.arange(len(heads)).reshape(-1, 2).T.flat
    plan, gpu_plan = graph.plan, graph.gpu_plan
    place = record[by_head].argsort()  # place in head order of each record
    for name, actual, expected in (
        ("head", plan.head, h[by_relation]),
        ("tail", plan.tail, t[by_relation]),
        ("triple", plan.triple, by_relation),
        ("context_relation", plan.context_relation, relations[by_head]),
        ("context_tail", plan.context_tail, tails[by_head]),
        ("context_record", plan.context_record, record[by_head]),
        ("raw", gpu_plan.raw[:, 2:], place.reshape(-1, 2)),
        ("triple of the gpu plan", gpu_plan.triple, by_relation),
        ("context", gpu_plan.context[:, 2], record[by_head]),
    ):
        assert_bitwise_equal(actual.long(), torch.from_numpy(expected), name=name)


def test_ids_up_to_the_limit_are_sorted() -> None:
    """Two such ids and a place do not fit into one 64-bit number."""
    most = 2**31 - 1
    columns = np.array([[most - 1, 3, 0], [0, 2, most - 1], [5, 1, 5], [0, 2, 7]] * 2).T
    order = plans.stable_order(*((ids.astype(np.int32), most) for ids in columns))
    assert order.tolist() == np.lexsort(columns[::-1]).tolist()


def test_tasks_have_about_equal_cost() -> None:
    plan = layer_inputs("hubs", 1, torch.float32)[2].plan
    cost = torch.cat([torch.zeros(1), (plan.entity_chunk.diff() + 2).cumsum(0)])[plan.entity_task].diff()
    longest = plan.entity_chunk.diff().max() + 2
    assert len(cost) > 2
    assert cost.max() <= TASK_COST + longest
    assert cost[1:-1].min() >= 1


def test_repeated_rows_of_a_relation_follow_one_another() -> None:
    """The rows of the side with fewer distinct entities follow one another, so the cache serves them."""
    random = np.random.default_rng(5)
    few, many = random.integers(0, 4, 400), random.integers(4, 300, 400)
    relation = np.arange(400) % 2
    triples = np.stack([np.where(relation, few, many), relation, np.where(relation, many, few)], 1)
    plan = ContextGraph.from_triples(torch.from_numpy(triples), 300, 2).plan
    for side, changes in ((plan.tail[:200], 3), (plan.head[200:], 3)):
        assert (side.diff() != 0).sum() == changes


@pytest.mark.parametrize("name", CPU_GRAPHS)
def test_dtypes_and_layouts_of_the_plan(name: str) -> None:
    for field, values in layer_inputs(name, 1, torch.float32)[2].plan._asdict().items():
        assert values.dtype == (torch.int64 if field in OFFSETS else torch.int32), field
        assert values.is_contiguous(), field
        assert values.ndim == 1, field


def test_context_triples_are_the_given_ones_then_their_inverses() -> None:
    graph = ContextGraph.from_triples(torch.tensor([[4, 1, 0], [2, 0, 2]]), 5, 3)
    assert [t.tolist() for t in graph.context_triples] == [[4, 2, 0, 2], [1, 0, 4, 3], [0, 2, 4, 2]]


@pytest.mark.parametrize(("entities", "relations"), [(0, 0), (3, 0), (0, 2), (3, 2)])
def test_no_triples(entities: int, relations: int) -> None:
    graph = ContextGraph.from_triples(np.zeros((0, 3), np.int64), entities, relations)
    assert graph.num_triples == 0
    check_plan(graph)


def test_arrays_and_tensors_give_the_same_graph() -> None:
    triples = np.random.default_rng(6).integers(0, [9, 3, 9], (50, 3))
    from_array = ContextGraph.from_triples(triples, 9, 3)
    for tensor in (torch.from_numpy(triples), torch.from_numpy(triples.T.copy()).T):
        graph = ContextGraph.from_triples(tensor, 9, 3)
        assert_bitwise_equal(graph.triples, from_array.triples)
        for name, values in graph.plan._asdict().items():
            assert_bitwise_equal(values, getattr(from_array.plan, name), name=name)


def test_a_graph_moves_with_its_plans() -> None:
    graph = layer_inputs("hubs", 1, torch.float32)[2]
    moved = graph.to("meta")
    assert moved.device.type == "meta"
    assert (moved.num_triples, moved.num_entities, moved.num_relations) == (
        graph.num_triples,
        graph.num_entities,
        graph.num_relations,
    )
    for values in (moved.triples, *moved.plan, *moved.gpu_plan, *moved.context_triples):
        assert values.device.type == "meta"
    assert graph.device.type == "cpu"  # a move does not change the original graph
    assert graph.plan.head.device.type == "cpu"
    assert graph.to("cpu") is graph  # with its plans


@pytest.mark.parametrize("device", [torch.float64, None, torch.zeros(1)])
def test_moving_a_graph_requires_a_device(device: Any) -> None:
    with pytest.raises(TypeError, match="expected a device"):
        layer_inputs("hubs", 1, torch.float32)[2].to(device)


def test_a_graph_is_on_the_device_of_its_triples() -> None:
    """The default device does not matter. An array becomes a graph on the CPU."""
    triples = torch.tensor([[0, 0, 1], [1, 0, 2]])
    with torch.device("meta"):
        for given in (triples, triples.numpy()):
            graph = ContextGraph.from_triples(given, 4, 1)
            tensors = (graph.triples, *graph.plan, *graph.gpu_plan, *graph.context_triples)
            assert {graph.device, *(tensor.device for tensor in tensors)} == {torch.device("cpu")}


def test_plans_are_built_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []
    for name in ("build_plan", "build_gpu_plan"):
        build = Mock(side_effect=getattr(plans, name))
        monkeypatch.setattr(f"lightcake_fast.graph.{name}", build)
        builds.append(build)
    x, y, graph, _ = layer_inputs("degrees", 4, torch.float32)
    context_layer(x, y, graph, backend="reference")
    assert [build.call_count for build in builds] == [0, 0]
    for _ in range(2):
        context_layer(x, y, graph, backend="numba")
    assert [build.call_count for build in builds] == [1, 0]


def test_repr_uses_the_singular() -> None:
    graph = ContextGraph.from_triples([[0, 0, 0]], 1, 1)
    assert repr(graph) == "ContextGraph(1 triple, 1 entity, 1 relation, on cpu)"


def test_repr_is_one_line() -> None:
    graph = ContextGraph.from_triples(torch.zeros(1500, 3, dtype=torch.int64), 4000, 2)
    assert repr(graph) == "ContextGraph(1,500 triples, 4,000 entities, 2 relations, on cpu)"


@pytest.mark.parametrize(
    ("triples", "message"),
    [
        (torch.zeros(4, 3), r"triples: expected int32 or int64 \(T, 3\), got float32 \(4, 3\)"),
        (torch.zeros(4, 3, dtype=torch.int16), r"triples: expected .* got int16"),
        (torch.zeros(4, 2, dtype=torch.int64), r"triples: expected .* got int64 \(4, 2\)"),
        (torch.zeros(3, dtype=torch.int64), r"triples: expected .* got int64 \(3,\)"),
        (np.zeros((0, 2), np.int64), r"triples: expected .* got int64 \(0, 2\)"),
        (torch.zeros(2**30, 3, dtype=torch.int64, device="meta"), r"triples: .* 2\^30 - 64, got 1073741824"),
        (torch.tensor([[0, 0, 1], [5, 0, 0]]), "head ids: expected 0 to 4, got 0 to 5"),
        (torch.tensor([[-1, 0, 1]]), "head ids: expected 0 to 4, got -1 to -1"),
        (torch.tensor([[0, 2, 1]]), "relation ids: expected 0 to 1, got 2 to 2"),
        (torch.tensor([[0, -3, 1]]), "relation ids: expected 0 to 1, got -3 to -3"),
        (torch.tensor([[0, 0, 5]]), "tail ids: expected 0 to 4, got 5 to 5"),
        (torch.tensor([[0, 0, -7]]), "tail ids: expected 0 to 4, got -7 to -7"),
    ],
)
def test_wrong_triples_are_refused(triples: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContextGraph.from_triples(triples, 5, 2)


@pytest.mark.parametrize("triples", [[["a", "b", "c"]], [[0, 0, 1], [0]], object()])
def test_non_tables_of_ids_are_refused(triples: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^triples: expected .*\(T, 3\), got "):
        ContextGraph.from_triples(triples, 2, 1)


def test_lists_are_accepted() -> None:
    rows = [[0, 0, 1], (1, 0, 0)]
    graph = ContextGraph.from_triples(rows, 2, 1)
    assert graph.triples.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_arrays_of_any_layout_are_accepted() -> None:
    rows = np.array([[0, 0, 1], [1, 0, 0]], np.int32)
    assert ContextGraph.from_triples(rows[::-1], 2, 1).triples.tolist() == [[1, 0, 0], [0, 0, 1]]
    rows.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for copy in (True, False):
            assert ContextGraph.from_triples(rows, 2, 1, copy=copy).triples.tolist() == rows.tolist()
    assert ContextGraph.from_triples([], 2, 1).num_triples == 0


@pytest.mark.parametrize("sizes", [(5.7, 1), (5, 1.0), ("5", 1), (None, 1)])
def test_sizes_must_be_integers(sizes: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="interpreted as an integer"):
        ContextGraph.from_triples([[4, 0, 0]], *sizes)


@pytest.mark.parametrize("sizes", [(2**31, 1), (1, 2**30), (-3, 1), (1, -1)])
def test_sizes_beyond_the_ids_dtype_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="sizes: expected"):
        ContextGraph.from_triples(torch.zeros(1, 3, dtype=torch.int64), *sizes)


@pytest.mark.parametrize(("name", "sizes"), [("entities", (2**29, 1)), ("relations", (1, 2**29))])
def test_sizes_beyond_the_kernels_numbers_are_refused(name: str, sizes: tuple[int, int]) -> None:
    graph = ContextGraph.from_triples([], *sizes)
    with pytest.raises(InputError, match=rf"^{name}: expected fewer than 536,870,912 .* 'triton', got 536,"):
        _ = graph.gpu_plan


@pytest.mark.parametrize("more", [0, 1])
def test_all_chunks_of_a_gpu_plan_can_be_numbered(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    triples = [[0, 0, 1], *[[0, 1, n % 50 + 2] for n in range(127)]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    graph = ContextGraph.from_triples(torch.tensor(triples, device=device), 60 + more, 2)
    monkeypatch.setattr(plans, "GPU_MOST_CHUNKS", 60 + 256 // 32 + 32)
    x, y = (torch.ones(rows, 4, device=device) for rows in (graph.num_entities, 4))
    if not more:
        assert max(len(graph.gpu_plan.entity_chunk), len(graph.gpu_plan.relation_chunk)) <= 100
        return
    with pytest.raises(InputError, match="use backend 'reference'"):
        context_layer(x, y, graph, backend="triton")
    assert len(graph.plan.head) == 128, "other back ends take the graph"


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_the_callers_triples_may_change_afterwards(kind: torch.dtype) -> None:
    triples = torch.tensor([[0, 0, 1], [1, 0, 2]], dtype=kind)
    graph = ContextGraph.from_triples(triples, 4, 1)
    triples[0, 0] = 3
    assert graph.triples[0, 0] == 0


def test_ids_in_the_layout_of_a_graph_are_shared() -> None:
    triples = np.array([[0, 0, 1], [1, 0, 2]], np.int32)
    graph = ContextGraph.from_triples(triples, 4, 1, copy=False)
    assert np.shares_memory(graph._ids, triples)
    turned = ContextGraph.from_triples(np.asfortranarray(triples), 4, 1, copy=False)
    for one, other in zip(graph.plan, turned.plan, strict=True):
        assert_bitwise_equal(one, other)


@pytest.mark.parametrize(
    ("triples", "chunk"),
    [
        (8 * 1056, 32),  # one wave in any case
        (32 * 1056, 32),  # one full wave
        (36_000, 40),  # with chunks of 32, 7 % of the programs would need a second wave
        (32 * 2 * 1056, 32),
        (150_000, 48),  # three waves instead of five
        (10**7, 256),
    ],
)
def test_relation_programs_fill_their_waves(triples: int, chunk: int) -> None:
    assert gpu_relation_chunk(np.array([triples])) == chunk


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_graph_first_used_in_inference_mode_trains(backend: str) -> None:
    x, y, graph, _ = layer_inputs("degrees", 5, torch.float64)
    with torch.inference_mode():
        rows = context_layer(x, y, graph, backend=backend)[0].clone()
    trained = context_layer(x.requires_grad_(), y, graph, backend=backend)[0]
    assert_bitwise_equal(trained, rows)
    (gradient,) = torch.autograd.grad(trained.sum(), x)
    assert gradient.isfinite().all()
    assert not any(kept.is_inference() for kept in (*graph.context_triples, graph._narrow))
