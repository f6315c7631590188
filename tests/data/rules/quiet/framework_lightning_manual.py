import pytorch_lightning as pl
import torch
from torch import nn


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layer = nn.Linear(8, 4)

    def training_step(self, batch, index):
        x, y = batch
        opt = self.optimizers()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(self.layer(x), y)
        self.manual_backward(loss)
        self.clip_gradients(opt, gradient_clip_val=0.5)
        opt.step()

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", nn.functional.cross_entropy(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
