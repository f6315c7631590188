# Layers in a loop are one forward, also when forward is called as a method.
import torch.nn as nn


class BaseModel(nn.Module):
    def forward(self, x, profile=False):
        return self._forward_once(x, profile)

    def _forward_once(self, x, profile=False):
        y, dt = [], []
        for m in self.model:
            if m.f != -1:
                x = y[m.f] if isinstance(m.f, int) else [x if j == -1 else y[j] for j in m.f]
            x = m(x)
            y.append(x if m.i in self.save else None)
        return x


class DetectionModel(BaseModel):
    def __init__(self, cfg, ch=3):
        super().__init__()
        self.model, self.save = parse_model(cfg, ch)
        self.info = self.forward(1)

    def forward(self, x, augment=False, profile=False):
        return self._forward_once(x, profile)
