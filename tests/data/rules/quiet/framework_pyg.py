import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

data = Planetoid("data", "Cora")[0]
train_loader = NeighborLoader(data, num_neighbors=[10, 10], batch_size=64, input_nodes=data.train_mask, shuffle=True)
test_loader = NeighborLoader(data, num_neighbors=[-1], batch_size=64, input_nodes=data.test_mask)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SAGEConv(16, 7)

    def forward(self, x, edge_index):
        return F.dropout(self.conv(x, edge_index), training=self.training)


model = Net()
optimizer = torch.optim.Adam(model.parameters())


def train():
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()


@torch.no_grad()
def test():
    model.eval()
    return sum(int((model(b.x, b.edge_index).argmax(-1) == b.y).sum()) for b in test_loader)


for epoch in range(10):
    train()
    test()
