# A test runs once, on what its fixture has just made.
import unittest

import torch


class TestReferenceModel(unittest.TestCase):
    def setUp(self):
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1)
        self.x = torch.ones(3, 4)

    def test_independent(self):
        before = self.model.weight.data.clone()
        self.model(self.x).sum().backward()
        self.optimizer.step()
        assert not (before == self.model.weight.data).all()

    def test_shared(self):
        before = self.model.bias.data.clone()
        self.model(self.x).sum().backward()
        self.optimizer.step()
        assert not (before == self.model.bias.data).all()


class TestPytestStyle:
    def setup_method(self):
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1)
        self.x = torch.ones(3, 4)

    def test_shared(self):
        before = self.model.bias.data.clone()
        output = self.model(self.x)
        output[1].backward()
        self.optimizer.step()
        assert not (before == self.model.bias.data).all()
