"""Kinds of faults and of their correct twins that were written before the rules had seen them.

A line that ends in `# here` holds a finding of the rule that the test names; no other line does.
"""

from __future__ import annotations

import textwrap

import pytest

from torchwise_analysis.fixes import SourceFile
from torchwise_analysis.interp.abstract import run
from torchwise_analysis.interp.abstract.limits import Limits
from torchwise_analysis.names.project import Project
from torchwise_analysis.rules import judge
from torchwise_analysis.settings import Settings


def check(rule: str, text: str) -> None:
    program = textwrap.dedent(text)
    file = SourceFile("/nowhere/program.py", program)
    trace = run(file.module, Project([]), Limits())
    assert trace.silence.failed == ()
    findings = judge(trace, file, Settings()).findings
    found = sorted(finding.place.span.line + 1 for finding in findings if finding.rule == rule)
    assert found == [n for n, line in enumerate(program.splitlines(), start=1) if line.endswith("# here")]


LIGHTNING_SCHEDULERS = """
import lightning.pytorch as pl
import torch
from torch import nn


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(nn.functional.mse_loss(self.net(x), y))
        opt.step()
{hook}
    def configure_optimizers(self):
        opt = torch.optim.Adam(self.net.parameters())
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99){here}
        return {returned}
"""


TWO = "[opt], [sched, torch.optim.lr_scheduler.StepLR(opt, 9)]"
DICT = '{"optimizer": opt, "lr_scheduler": {"scheduler": sched}}'


@pytest.mark.parametrize(
    ("hook", "returned"),
    [
        ("for s in self.lr_schedulers():\n            s.step()", TWO),
        ("[s.step() for s in self.lr_schedulers()]", TWO),
        ("first, second = self.lr_schedulers()\n        first.step()\n        second.step()", TWO),
        ("sched = self.lr_schedulers()\n        sched.step()", "[opt], [sched]"),
        ("self.lr_schedulers().step()", DICT),
    ],
)
def test_schedulers_that_a_manual_lightning_module_steps(hook: str, returned: str) -> None:
    own = f"\n    def on_train_epoch_end(self):\n        {hook}\n"
    check("scheduler-never-stepped", LIGHTNING_SCHEDULERS.format(hook=own, here="", returned=returned))


@pytest.mark.parametrize("returned", ["[opt], [sched]", '{"optimizer": opt, "lr_scheduler": sched}'])
def test_schedulers_that_a_manual_lightning_module_does_not_step(returned: str) -> None:
    text = LIGHTNING_SCHEDULERS.format(hook="", here="  # here", returned=returned)
    check("scheduler-never-stepped", text)


HEAD = """
from torch import nn


def head(width):
    return {made}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv1d(3, 64, 1)
        self.head = None

    def forward(self, x):
        h = self.body(x).amax(-1)
{use}


net = Net()
for x in loader:
    net(x).sum().backward()
"""


@pytest.mark.parametrize(
    "made", ["nn.Linear(width, 4)", "nn.Sequential(nn.Linear(width, 8), nn.Linear(8, 4))"]
)
def test_a_helper_makes_the_layer_once(made: str) -> None:
    use = (
        "        if self.head is None:\n            self.head = head(h.shape[1])\n        return self.head(h)"
    )
    check("layer-built-in-forward", HEAD.format(made=made, use=use))


@pytest.mark.parametrize(
    "made", ["nn.Linear(width, 4)", "nn.Sequential(nn.Linear(width, 8), nn.Linear(8, 4))"]
)
@pytest.mark.parametrize(
    "use",
    [
        "        return head(h.shape[1])(h)",
        "        self.head = head(h.shape[1])\n        return self.head(h)",
    ],
)
def test_a_helper_makes_the_layer_in_each_forward(made: str, use: str) -> None:
    check("layer-built-in-forward", HEAD.format(made=made + "  # here", use=use))


TAIL = """
import torch
from torch import nn

model = nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, epochs, window):
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            {test}
            (nn.functional.cross_entropy(model(x), y) / window).backward()
            if {use}:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "test",
    [
        "last = (i + 1) % window == 0 or i + 1 == len(loader)",
        "last = (i + 1) % window == 0 or i == len(loader) - 1",
        "last = i + 1 == len(loader) or not (i + 1) % window",
        "last = bool((i + 1) % window == 0 or (i + 1) == len(loader))",
    ],
)
def test_a_name_for_the_end_of_a_window_or_of_the_epoch(test: str) -> None:
    check("accumulation-tail-dropped", TAIL.format(test=test, use="last"))


def test_a_loop_that_is_left_before_the_window_that_is_not_full() -> None:
    test = "if i >= len(loader) // window * window:\n                break"
    check("accumulation-tail-dropped", TAIL.format(test=test, use="(i + 1) % window == 0"))


def test_a_name_for_the_end_of_a_window_alone() -> None:
    text = TAIL.format(test="last = (i + 1) % window == 0", use="last")
    check("accumulation-tail-dropped", text.replace("if last:", "if last:  # here"))


def test_a_counter_of_an_object_goes_on_in_the_next_epoch() -> None:
    check(
        "accumulation-tail-dropped",
        """
        import torch
        from torch import nn


        class Learner:
            def __init__(self, model, window):
                self.model, self.window, self.pending = model, window, 0
                self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

            def micro_step(self, x, y):
                (nn.functional.cross_entropy(self.model(x), y) / self.window).backward()
                self.pending += 1
                if self.pending == self.window:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.pending = 0


        def run(model, loader):
            learner = Learner(model, 4)
            for epoch in range(10):
                for x, y in loader:
                    learner.micro_step(x, y)
        """,
    )


@pytest.mark.parametrize(
    "made",
    [
        "nn.CrossEntropyLoss().cuda()",
        "nn.CrossEntropyLoss().cuda(gpu)",
        "nn.CrossEntropyLoss(ignore_index=255).to(device)",
        "nn.CrossEntropyLoss().to(device, non_blocking=True).train()",
    ],
)
def test_a_loss_that_is_moved_is_the_same_loss(made: str) -> None:
    check(
        "retained-graph",
        f"""
        import torch
        from torch import nn


        def train(model, loader, device, gpu):
            model.to(device)
            criterion = {made}
            criterion.to(device)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            total = 0
            for x, y in loader:
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss  # here
        """,
    )


def test_a_loss_whose_forward_is_called_by_name() -> None:
    check(
        "double-softmax",
        """
        from torch import nn

        model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=1))  # here
        criterion = nn.CrossEntropyLoss().cuda()


        def step(x, y):
            criterion.forward(model(x), y).backward()
        """,
    )


UNSEEN = """
import torch
from unseen import build_data, build_loss, build_model
{more}

def main(cfg):
    model = build_model(cfg).to("cuda")
    criterion = build_loss(cfg)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    {loader}
    total = 0
    for step, (x, y) in enumerate({walk}):
        loss = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # here
    return float(total)
"""


@pytest.mark.parametrize(
    ("loader", "walk"),
    [
        ("train_loader, val_loader = build_data(cfg)", "train_loader"),
        ("train_loader = build_data(cfg)", "tqdm(train_loader)"),
        ("data = build_data(cfg)", "data"),
    ],
)
def test_what_unseen_builders_give_is_taken_by_name_and_use(loader: str, walk: str) -> None:
    check("retained-graph", UNSEEN.format(more="from tqdm import tqdm\n", loader=loader, walk=walk))


def test_what_unseen_builders_give_to_a_function_of_the_file() -> None:
    check(
        "unguarded-eval",
        """
        from unseen import build_data, build_model


        def evaluate(model, loader):
            model.eval()
            hits = 0
            for x, y in loader:
                hits += (model(x).argmax(1) == y).sum().item()  # here
            return hits


        print(evaluate(build_model(), build_data()))
        """,
    )


@pytest.mark.parametrize(
    "text",
    [
        # an estimator of another library
        """
        from unseen import build_data, build_model

        model = build_model()
        model.fit(build_data())
        kept = []
        for x in build_data():
            kept.append(model(x))
        print(model.predict(kept))
        """,
        # a function that opens files
        """
        from unseen import get_loader, read

        loader = get_loader()
        kept = []
        for name in read():
            kept.append(loader(name))
        """,
    ],
)
def test_names_that_the_use_contradicts(text: str) -> None:
    check("retained-graph", text)
    check("unguarded-eval", text)


OUTPUTS = """
import lightning.pytorch as pl
import torch
from torch import nn


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.outputs.append({stored})
        return loss

    def {hook}(self{more}):
        self.log("mean", torch.stack(self.outputs).mean())
        self.outputs.{clear}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
"""


@pytest.mark.parametrize("clear", ["clear()", "__init__()  # none"])
@pytest.mark.parametrize("hook", ["on_train_epoch_end", "training_epoch_end"])
def test_outputs_that_are_kept_for_an_epoch(hook: str, clear: str) -> None:
    more = ", outputs" if hook == "training_epoch_end" else ""
    text = OUTPUTS.format(hook=hook, more=more, clear=clear, stored="loss")
    check("retained-graph", text.replace("append(loss)", "append(loss)  # here"))
    check("retained-graph", OUTPUTS.format(hook=hook, more=more, clear=clear, stored="loss.detach()"))


def test_outputs_that_are_cleared_behind_each_batch() -> None:
    more = ", outputs, batch, batch_idx"
    text = OUTPUTS.format(hook="on_train_batch_end", more=more, clear="clear()", stored="loss")
    check("retained-graph", text)


@pytest.mark.parametrize(
    ("clear", "is_found"),
    [("        self.kept.clear()", True), ("            self.kept.clear()", False)],
)
def test_a_list_that_is_cleared_in_each_epoch_or_in_each_step(clear: str, is_found: bool) -> None:
    text = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader, self.kept = model, loader, []
        self.optimizer = torch.optim.Adam(model.parameters())

    def fit(self):
        for epoch in range(100):
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.kept.append(loss){here}
    {clear}
"""
    check("retained-graph", text.format(clear=clear, here="  # here" if is_found else ""))


COUNTED = """
import lightning.pytorch as pl
import torch
from torch import nn


class Model(pl.LightningModule):
    def __init__(self, window):
        super().__init__()
        self.automatic_optimization = False
        self.window = window
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, {index}):
        opt = self.optimizers()
        x, y = batch
        loss = nn.functional.l1_loss(self.net(x), y)
        self.manual_backward({loss})
        if ({index} + 1) % self.window == 0:
            opt.step()
            opt.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), 0.1)
"""


@pytest.mark.parametrize("index", ["batch_idx", "i"])
def test_lightning_counts_the_calls_of_training_step(index: str) -> None:
    text = COUNTED.format(index=index, loss="loss")
    check("unscaled-accumulation", text.replace("backward(loss)", "backward(loss)  # here"))
    check("unscaled-accumulation", COUNTED.format(index=index, loss="loss / self.window"))
    check("missing-zero-grad", text)


PLAYERS = """
import torch
from torch import nn

G, D = nn.Linear(8, 12), nn.Linear(12, 1)
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())


def critic(real):
    opt_d.zero_grad()
    loss = D({fake}).mean() - D(real).mean(){critic}
    loss.backward()
    opt_d.step()


def generator():
    {before}
    loss = -D({made}).mean(){generator}
    loss.backward()
    opt_g.step()
    {after}


def train(loader):
    for i, real in enumerate(loader):
        critic(real)
        if i % 5 == 0:
            generator()
"""
NOISE = "G(torch.randn(4, 8))"


def players(**changes: str) -> str:
    given = {"fake": NOISE, "made": NOISE, "before": "pass", "after": "pass", "critic": "", "generator": ""}
    return PLAYERS.format(**(given | changes))


def test_what_the_critic_leaves_on_the_generator_is_applied() -> None:
    rule = "gan-generator-not-detached"
    check(rule, players(after="opt_g.zero_grad()", critic="  # here"))
    check(rule, players(after="opt_g.zero_grad()", fake=NOISE + ".detach()"))
    check("accumulation-tail-dropped", players(after="opt_g.zero_grad()"))
    check("unscaled-accumulation", players(after="opt_g.zero_grad()"))


def test_what_the_critic_leaves_on_the_generator_is_wasted() -> None:
    check("gan-generator-not-detached", players(before="opt_g.zero_grad()", critic="  # here"))


def test_the_generator_learns_nothing_and_nobody_applies_its_backward() -> None:
    rule, cut = "gan-generator-not-detached", NOISE + ".detach()"
    check(rule, players(before="opt_g.zero_grad()", fake=cut, made=cut, generator="  # here"))
    check(rule, players(before="opt_g.zero_grad()", fake=cut))


def test_two_parts_of_one_model_with_losses_of_their_own() -> None:
    check(
        "gan-generator-not-detached",
        """
        import torch
        from torch import nn

        encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        enc_opt = torch.optim.SGD(encoder.parameters(), 0.1)
        dec_opt = torch.optim.SGD(decoder.parameters(), 0.1)


        def train(loader):
            for x in loader:
                dec_opt.zero_grad()
                nn.functional.mse_loss(decoder(encoder(x)), x).backward()
                dec_opt.step()
                encoder(x).pow(2).mean().backward()
                enc_opt.step()
                enc_opt.zero_grad()
        """,
    )


WRAPPED = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)

    def forward(self, x):
        return self.loss(x)

    def loss(self, x):
        return (self.net(x) - x).pow(2).mean()

    def embed(self, x):
        return self.net(x)


def train(loader, rank):
    flow = DDP(Flow().to(rank), device_ids=[rank])
    opt = torch.optim.Adam(flow.parameters())
    for x in loader:
        loss = {loss}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


def test_another_method_of_the_module_inside_of_the_wrapper() -> None:
    check("ddp-forward-bypassed", WRAPPED.format(loss="flow.module.loss(x)  # here"))
    check("ddp-forward-bypassed", WRAPPED.format(loss="flow(x)"))
    check("ddp-forward-bypassed", WRAPPED.format(loss="flow(x) + flow.module.embed(x).mean()"))
    text = WRAPPED.format(loss="flow(x)").replace("for x in loader:", "for x in loader:\n        {probe}")
    probe = "with torch.no_grad():\n            flow.module.embed(x)"
    check("ddp-forward-bypassed", text.format(probe=probe))


ADAPTED = """
import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.low = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        return self.base(x) + x @ self.low


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return self.proj(x)


def train(loader):
    model = Model()
    {before}
    optimizer = torch.optim.Adam(model.parameters())
    {after}
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


def test_an_adapter_around_a_layer_that_the_optimizer_has() -> None:
    rule, put = "optimizer-misses-parameters", "model.proj = Adapted(model.proj)"
    check(rule, ADAPTED.format(before="pass", after=put + "  # here"))
    check(rule, ADAPTED.format(before=put, after="pass"))
    check(rule, ADAPTED.format(before="pass", after="model.proj = torch.compile(model.proj)"))


@pytest.mark.parametrize(
    ("owner", "made"),
    [("fabric", "Fabric()"), ("accelerator", "Accelerator()")],
)
def test_a_prepared_optimizer_that_the_script_does_not_step(owner: str, made: str) -> None:
    text = f"""
        import torch
        from accelerate import Accelerator
        from lightning.fabric import Fabric
        from torch import nn


        def train(loader):
            {owner} = {made}
            body, head = nn.Linear(8, 8), nn.Linear(8, 4)
            one, two = torch.optim.Adam(body.parameters()), torch.optim.Adam(head.parameters())
            body, one = {owner}.{"setup" if owner == "fabric" else "prepare"}(body, one)
            head, two = {owner}.{"setup" if owner == "fabric" else "prepare"}(head, two)
            for x, y in loader:
                one.zero_grad()
                two.zero_grad()
                {owner}.backward(nn.functional.cross_entropy(head(body(x)), y))  # here
                one.step()
    """
    check("missing-step", text)
    both = text.replace("  # here", "").replace("one.step()", "one.step()\n                two.step()")
    check("missing-step", both)


def test_the_loss_of_a_model_of_transformers_is_a_mean() -> None:
    text = """
        import torch
        from transformers import AutoModelForCausalLM


        def train(loader, window):
            model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i, batch in enumerate(loader):
                loss = model(**batch).loss{divided}
                loss.backward(){here}
                if (i + 1) % window == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
    """
    check("unscaled-accumulation", text.format(divided="", here="  # here"))
    check("unscaled-accumulation", text.format(divided=" / window", here=""))


def test_a_length_times_a_count_that_nobody_passes_counts_batches() -> None:
    text = """
        import torch
        from torch import nn


        def train(model, loader, epochs):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
            for epoch in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                    {often}
                {rarely}
    """
    rule = "scheduler-wrong-cadence"
    check(rule, text.format(often="pass", rarely="schedule.step()  # here"))
    check(rule, text.format(often="schedule.step()", rarely="pass"))


INSIDE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    {decorator}
    def forward(self, x):
        with torch.autocast("cuda", enabled={enabled}, dtype=torch.{inner}):
            return self.body(x)


def train(loader):
    net = Net().cuda()
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x.cuda()).float(), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("decorator", "enabled", "inner", "is_found"),
    [
        ("# plain", "True", "float16", True),
        ("# plain", "True", "bfloat16", False),
        ("# plain", "False", "float16", False),
        ('@torch.autocast("cuda", dtype=torch.float16)', "True", "float16", True),
        ('@torch.autocast("cuda", dtype=torch.bfloat16)', "True", "bfloat16", False),
    ],
)
def test_a_forward_that_switches_autocast_on(
    decorator: str, enabled: str, inner: str, is_found: bool
) -> None:
    text = INSIDE.format(decorator=decorator, enabled=enabled, inner=inner)
    at = decorator if decorator.startswith("@") else "loss.backward()"
    check("fp16-without-scaler", text.replace(at, f"{at}  # here") if is_found else text)


HARD = """
import torch
from torch import nn


def overlap(logits, target):
    p = torch.sigmoid(logits)
    {hard}
    return 1 - (p * target).sum() / (p + target).sum()


def train(loader):
    net = nn.Conv2d(3, 1, 3)
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for x, mask in loader:
        loss = overlap(net(x), mask).requires_grad_()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize("hard", ["p = (p > 0.5).float()", "p = p.round()", "p = torch.round(p)"])
def test_a_loss_of_the_project_that_only_sees_decisions(hard: str) -> None:
    check("nondifferentiable-loss", HARD.format(hard=hard + "  # here"))


@pytest.mark.parametrize("hard", ["pass", "p = (p > 0.5).float() + p - p.detach()", "p = p.clamp(0.1, 0.9)"])
def test_a_loss_of_the_project_that_sees_probabilities(hard: str) -> None:
    check("nondifferentiable-loss", HARD.format(hard=hard))


@pytest.mark.parametrize(("used", "is_found"), [("self.rng", True), ("random.Random(index)", False)])
def test_a_generator_that_is_kept_and_not_drawn_from(used: str, is_found: bool) -> None:
    check(
        "worker-rng-duplicated",
        f"""
        import random
        from torch.utils.data import DataLoader, Dataset


        class Pairs(Dataset):
            def __init__(self, rows):
                self.rows = rows
                self.rng = random.Random(7)  {"# here" if is_found else ""}

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, index):
                rng = {used}
                return self.rows[index], self.rows[rng.randrange(len(self.rows))]


        def loader(rows):
            return DataLoader(Pairs(rows), batch_size=8, shuffle=True, num_workers=4)
        """,
    )


PART = """
import torch
from torch import nn


class Auto(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        self.decoder = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 8))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def show(auto):
    auto.decoder.eval(){here}
    with torch.no_grad():
        out = auto.decoder(torch.randn(4, 4))
    {after}
    return out


def train(loader):
    auto = Auto()
    {first}
    opt = torch.optim.Adam(auto.parameters())
    auto.train()
    for step, x in enumerate(loader):
        loss = nn.functional.mse_loss(auto(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            show(auto)
            {again}
"""


@pytest.mark.parametrize(
    ("after", "again", "is_found"),
    [
        ("pass", "pass", True),
        ("auto.decoder.train()", "pass", False),
        ("auto.train()", "pass", False),
        ("pass", "auto.train()", False),
        ("pass", "auto.decoder.train(True)", False),
    ],
)
def test_a_part_that_is_left_in_eval_mode(after: str, again: str, is_found: bool) -> None:
    text = PART.format(after=after, again=again, here="  # here" if is_found else "", first="pass")
    check("stuck-eval-mode", text)


def test_a_part_that_is_frozen_from_the_start() -> None:
    text = PART.format(after="pass", again="pass", here="", first="auto.decoder.eval()")
    check("stuck-eval-mode", text.replace("    auto.train()\n", ""))


KEPT = """
import torch
from torch import nn


def fit(net, loader, scores):
    opt = torch.optim.SGD(net.parameters(), 0.1)
    best = {start}
    for score in scores:
        for x, y in loader:
            opt.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            opt.step()
        if score < best[{first}]:
            best = {kept}
    return best


def main(net, loader, scores):
    torch.save(fit(net, loader, scores)[{second}], "best.pt")
"""


@pytest.mark.parametrize(
    ("start", "kept", "first", "second"),
    [
        ('(float("inf"), None)', "(score, STATE)", "0", "1"),
        ('[float("inf"), None]', "[score, STATE]", "0", "1"),
        ('{"score": 9.0, "state": None}', '{"score": score, "state": STATE}', '"score"', '"state"'),
    ],
)
def test_weights_kept_beside_their_score(start: str, kept: str, first: str, second: str) -> None:
    text = KEPT.format(start=start, kept=kept, first=first, second=second)
    here = text.replace("STATE", "net.state_dict()").replace(
        kept.replace("STATE", "net.state_dict()"), "KEPT"
    )
    line = kept.replace("STATE", "net.state_dict()") + "  # here"
    check("best-state-aliased", here.replace("KEPT", line))
    check("best-state-aliased", text.replace("STATE", "{k: v.clone() for k, v in net.state_dict().items()}"))


DROP_PATH = """
import torch
from torch import nn


def drop_path(x, p: float = 0.0, training: bool = False):
    {guard}
    keep = 1 - p
    mask = keep + torch.rand((x.shape[0], 1), device=x.device)
    {floor}
    return x.div(keep) * mask


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p, self.layer = p, nn.Linear(8, 8)

    def forward(self, x):
        return x + drop_path(self.layer(x), self.p, self.training)
"""


@pytest.mark.parametrize("floor", ["mask.floor_()", "mask = mask.floor()"])
def test_stochastic_depth_that_is_told_the_mode(floor: str) -> None:
    rule = "dropout-always-on"
    check(rule, DROP_PATH.format(guard="if p == 0.0:\n        return x", floor=floor + "  # here"))
    check(rule, DROP_PATH.format(guard="if p == 0.0 or not training:\n        return x", floor=floor))
    check(rule, DROP_PATH.format(guard="if not training or p == 0.0:\n        return x", floor=floor))


SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType


def save(model, rank, path):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
{body}


def train(loader):
    dist.init_process_group("nccl")
    model = FSDP(nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    save(model, dist.get_rank(), "model.pt")
"""
ALONE = """
    if rank == 0:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
            torch.save(model.state_dict(), path)  # here
"""
TOGETHER = """
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, path)
"""


def test_one_rank_gathers_the_state_dict_of_fsdp() -> None:
    check("rank-divergent-collective", SHARDED.format(body=ALONE))
    check("rank-divergent-collective", SHARDED.format(body=TOGETHER))
    plain = SHARDED.format(body=ALONE.replace("  # here", "")).replace(
        "FSDP(nn.Linear(8, 8))", "nn.Linear(8, 8)"
    )
    check("rank-divergent-collective", plain)
