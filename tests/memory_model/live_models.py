"""Models of many kinds, each as the text of a program's part that makes it with a batch and labels."""

from __future__ import annotations

MODELS = {
    "linear layers": """
        class Model(nn.Sequential):
            def __init__(self):
                super().__init__(
                    nn.Linear(784, 2048),
                    nn.ReLU(),
                    nn.Linear(2048, 2048),
                    nn.Tanh(),
                    nn.Linear(2048, 10),
                )

        def make():
            return Model(), torch.randn(512, 784), torch.randint(0, 10, (512,))
    """,
    "LSTM": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(2000, 256)
                self.rnn = nn.LSTM(256, 512, num_layers=2, batch_first=True)
                self.head = nn.Linear(512, 2000)

            def forward(self, x):
                out, _ = self.rnn(self.embed(x))
                return self.head(out).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 2000, (16, 64)), torch.randint(0, 2000, (1024,))
    """,
    "GRU": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(2000, 256)
                self.rnn = nn.GRU(256, 512, num_layers=2, batch_first=True)
                self.head = nn.Linear(512, 2000)

            def forward(self, x):
                out, _ = self.rnn(self.embed(x))
                return self.head(out).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 2000, (16, 64)), torch.randint(0, 2000, (1024,))
    """,
    "RNN": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(2000, 256)
                self.rnn = nn.RNN(256, 512, num_layers=2, batch_first=True)
                self.head = nn.Linear(512, 2000)

            def forward(self, x):
                out, _ = self.rnn(self.embed(x))
                return self.head(out).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 2000, (16, 64)), torch.randint(0, 2000, (1024,))
    """,
    "LSTM of two directions": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(2000, 256)
                self.rnn = nn.LSTM(256, 512, num_layers=1, batch_first=True, bidirectional=True)
                self.head = nn.Linear(1024, 2000)

            def forward(self, x):
                out, _ = self.rnn(self.embed(x))
                return self.head(out).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 2000, (16, 64)), torch.randint(0, 2000, (1024,))
    """,
    "LSTM cells": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.LSTMCell(256, 512)
                self.head = nn.Linear(512, 100)

            def forward(self, x):
                h = c = torch.zeros(x.shape[0], 512, device=x.device)
                for step in range(x.shape[1]):
                    h, c = self.cell(x[:, step], (h, c))
                return self.head(h)

        def make():
            return Model(), torch.randn(64, 20, 256), torch.randint(0, 100, (64,))
    """,
    "GRU cells": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(256, 512)
                self.head = nn.Linear(512, 100)

            def forward(self, x):
                h = torch.zeros(x.shape[0], 512, device=x.device)
                for step in range(x.shape[1]):
                    h = self.cell(x[:, step], h)
                return self.head(h)

        def make():
            return Model(), torch.randn(64, 20, 256), torch.randint(0, 100, (64,))
    """,
    "residual blocks": """
        def block(a, b, stride):
            return nn.Sequential(
                nn.Conv2d(a, b, 3, stride, 1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
                nn.Conv2d(b, b, 3, 1, 1, bias=False),
                nn.BatchNorm2d(b),
            )

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = block(3, 64, 1), block(64, 128, 2)
                self.skip = nn.Conv2d(64, 128, 1, 2)
                self.head = nn.Linear(128, 10)

            def forward(self, x):
                x = F.relu(self.a(x))
                x = F.relu(self.b(x) + self.skip(x))
                return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))

        def make():
            return Model(), torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    """,
    "U-Net": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.d1, self.d2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
                self.up = nn.ConvTranspose2d(64, 32, 2, 2)
                self.n = nn.GroupNorm(8, 64)
                self.out = nn.Conv2d(64, 10, 1)

            def forward(self, x):
                a = F.silu(self.d1(x))
                b = F.silu(self.d2(F.avg_pool2d(a, 2)))
                c = torch.cat([a, self.up(b)], 1)
                return self.out(self.n(c))

        def make():
            return Model(), torch.randn(8, 3, 128, 128), torch.randint(0, 10, (8, 128, 128))
    """,
    "transformer encoder": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(3000, 256)
                layer = nn.TransformerEncoderLayer(
                    256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True
                )
                self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
                self.head = nn.Linear(256, 3000)

            def forward(self, x):
                return self.head(self.encoder(self.embed(x))).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 3000, (8, 128)), torch.randint(0, 3000, (1024,))
    """,
    "transformer encoder with dropout": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(3000, 256)
                layer = nn.TransformerEncoderLayer(
                    256, 4, 1024, dropout=0.1, batch_first=True, norm_first=True
                )
                self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
                self.head = nn.Linear(256, 3000)

            def forward(self, x):
                return self.head(self.encoder(self.embed(x))).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 3000, (8, 128)), torch.randint(0, 3000, (1024,))
    """,
    "attention with mask and dropout": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(3000, 256)
                self.q, self.k, self.v, self.o = [nn.Linear(256, 256) for _ in range(4)]
                self.head = nn.Linear(256, 3000)

            def forward(self, x):
                x = self.embed(x)
                b, t, d = x.shape
                mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
                q, k, v = (f(x).view(b, t, 4, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
                a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
                return self.head(x + self.o(a.transpose(1, 2).reshape(b, t, d))).flatten(0, 1)

        def make():
            return Model(), torch.randint(0, 3000, (8, 512)), torch.randint(0, 3000, (4096,))
    """,
    "checkpointed blocks": """
        from torch.utils.checkpoint import checkpoint

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(
                    nn.Sequential(
                        nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)
                    )
                    for _ in range(6)
                )
                self.head = nn.Linear(512, 10)

            def forward(self, x):
                for layer in self.layers:
                    x = x + checkpoint(layer, x, use_reentrant=False)
                return self.head(x)

        def make():
            return Model(), torch.randn(2048, 512), torch.randint(0, 10, (2048,))
    """,
    "frozen body": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(
                    nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.ReLU()
                )
                self.body.requires_grad_(False)
                self.head = nn.Linear(512, 1000)

            def forward(self, x):
                return self.head(self.body(x))

        def make():
            return Model(), torch.randn(2048, 512), torch.randint(0, 1000, (2048,))
    """,
    "layers used many times": """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.Linear(512, 512)
                self.norm = nn.RMSNorm(512)
                self.head = nn.Linear(512, 100)

            def forward(self, x):
                for _ in range(6):
                    x = self.norm(x + torch.sigmoid(self.cell(x)) * self.cell(x))
                return self.head(x)

        def make():
            return Model(), torch.randn(2048, 512), torch.randint(0, 100, (2048,))
    """,
}
