"""`apply_liger_kernel_to_*` on models whose text is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.names.project import Project
from torchwise_analysis.plan import EstimateRequest, estimate_module
from torchwise_analysis.source import lower_text

#: As much of transformers as the kernels replace.
LIBRARY = {
    "__init__.py": "from transformers.models.llama.modeling_llama import LlamaForCausalLM\n",
    "utils/__init__.py": "",
    "utils/generic.py": """
class ModelOutput:
    pass
""",
    "modeling_outputs.py": """
from dataclasses import dataclass
from transformers.utils.generic import ModelOutput

@dataclass
class CausalLMOutputWithPast(ModelOutput):
    loss: object = None
    logits: object = None
    hidden_states: object = None
    attentions: object = None
""",
    "models/__init__.py": "",
    "models/llama/__init__.py": "",
    "models/llama/modeling_llama.py": """
import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast

def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)

def apply_rotary_pos_emb(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

class LlamaRMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)

class LlamaMLP(nn.Module):
    def __init__(self, size, inner):
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

class Layer(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = LlamaRMSNorm(size), LlamaRMSNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.mlp = LlamaMLP(size, 3 * size)
    def forward(self, x, cos, sin):
        b, t, s = x.shape
        q, k, v = (h.view(b, t, self.heads, -1).transpose(1, 2) for h in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, s)
        x = x + self.out(h)
        return x + self.mlp(self.mlp_norm(x))

class Output:
    def __init__(self, last_hidden_state):
        self.last_hidden_state, self.hidden_states, self.attentions = last_hidden_state, None, None

class LlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config.hidden_size, 4) for _ in range(4)])
        self.norm = LlamaRMSNorm(config.hidden_size)
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None):
        x = self.tokens(input_ids)
        cos = torch.ones(input_ids.shape[1], x.shape[-1] // 4, device=x.device, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, cos, cos)
        return Output(self.norm(x))

class LlamaForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    def loss_function(self, logits, labels, vocab_size):
        return F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))
    def forward(self, input_ids=None, labels=None):
        logits = self.lm_head(self.model(input_ids=input_ids).last_hidden_state)
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits)
""",
}
SCRIPT = """
import torch
from transformers import LlamaForCausalLM
from liger_kernel.transformers import apply_liger_kernel_to_llama

class Config:
    vocab_size, hidden_size, model_type = 8000, 256, "llama"

{before}
model = LlamaForCausalLM(Config()).to(torch.bfloat16).cuda()
{after}
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    ids = torch.randint(0, 8000, (4, 512), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in LIBRARY.items():
        file = tmp_path / "transformers" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def live(site: Path, before: str = "", after: str = "") -> int:
    script = SCRIPT.replace("{before}", before).replace("{after}", after)
    request = EstimateRequest(with_remedies=False)
    report = estimate_module(lower_text("train.py", script), Project([], [str(site)]), request)
    assert not report.unanswered, report.unanswered
    peak = report.estimates[0].peak.allocated
    assert peak is not None
    return peak.point


def test_each_kernel_saves_what_it_replaces(site: Path) -> None:
    off = "rope=False, rms_norm=False, swiglu=False, fused_linear_cross_entropy=False"
    plain = live(site)
    assert live(site, f"apply_liger_kernel_to_llama({off})") == plain
    for kernel in ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy"):
        options = off.replace(f"{kernel}=False", f"{kernel}=True")
        assert live(site, f"apply_liger_kernel_to_llama({options})") < plain, kernel
    everything = live(site, "apply_liger_kernel_to_llama()")
    # neither the logits nor a copy of them in 32 bits stays
    assert everything < plain - 4 * 512 * 8000 * (2 + 4)


def test_a_loss_over_logits_writes_gradients_over_them(site: Path) -> None:
    fused, chosen = "fused_linear_cross_entropy=False", "cross_entropy=True"
    one = live(site, f"apply_liger_kernel_to_llama({fused}, {chosen})")
    assert live(site, "apply_liger_kernel_to_llama()") < one < live(site)


def test_kernels_may_be_put_into_a_model_that_exists(site: Path) -> None:
    later = "apply_liger_kernel_to_llama(model=model)"
    assert live(site, after=later) == live(site, "apply_liger_kernel_to_llama()")
