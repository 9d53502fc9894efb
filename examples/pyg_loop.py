"""`LightCAKEConv` in a PyTorch Geometric training loop: predict the relation between two nodes.

pip install torch-geometric
python examples/pyg_loop.py
"""

import torch
from torch import Tensor, nn

from lightcake_fast import ContextGraph, LightCAKEConv, load_dataset


class Net(nn.Module):
    """Learned node embeddings, two context layers, and a DistMult score per relation for pairs of nodes."""

    def __init__(self, num_nodes: int, num_relations: int, channels: int) -> None:
        super().__init__()
        self.num_relations = num_relations
        self.nodes = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_nodes, channels)))
        self.first = LightCAKEConv(channels, num_relations)
        self.second = LightCAKEConv(channels, num_relations)

    def forward(self, edges: ContextGraph, pairs: Tensor) -> Tensor:
        """Return scores (B, R) of pairs (2, B). Each layer refines both nodes and relations."""
        x = nn.functional.dropout(self.nodes, 0.5, self.training)
        x, relations = self.first(x, edges, relations=self.first.relations)
        x, relations = self.second(x, edges, relations=relations)
        return (x[pairs[0]] * x[pairs[1]]) @ relations[: self.num_relations].T


def main() -> float:
    """Train the model. Return its accuracy on the test edges."""
    torch.manual_seed(0)
    graph = load_dataset("family:200")
    train, test = graph.to_pyg("train"), graph.to_pyg("test")
    # The edges do not change, so sort them once
    edges = ContextGraph.from_edge_index(
        train.edge_index, train.edge_type, train.num_nodes, graph.num_relations
    )
    model = Net(train.num_nodes, graph.num_relations, channels=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(1, 61):
        model.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(edges, train.edge_index), train.edge_type)
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        found = model(edges, test.edge_index).argmax(1) == test.edge_type
    print(f"right on {found.float().mean():.1%} of the test edges")
    return found.float().mean().item()


if __name__ == "__main__":
    main()
