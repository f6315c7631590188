# finds: missing-zero-grad certain @ 16
import lightning as L
import torch
from torch import nn


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = nn.Linear(8, 8), nn.Linear(8, 1)

    def training_step(self, batch, index):
        opt = self.optimizers()
        loss = self.d(self.g(batch)).mean()
        self.manual_backward(loss)
        opt.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
