"""What an unknown thing probably is: by annotation, by how it is used, and last by its name.

Beliefs type the arguments of entries and the attributes of unseen objects. They are never proof: the
object's `origin` says how it is known, and rules grade by it.
"""

from __future__ import annotations

import re

from torchwise_analysis.interp.abstract.values import Class, Function, Kind, Obj, Origin

_MODULE_NAMES = frozenset(
    [
        "model",
        "net",
        "network",
        "module",
        "encoder",
        "decoder",
        "policy",
        "backbone",
        "generator",
        "discriminator",
        "student",
        "teacher",
        "rnn",
        "lstm",
        "gru",
        "nets",
        "models",
        "actor",
        "critic",
        "head",
        "classifier",
        "unet",
        "vae",
        "gan",
        "dit",
        "transformer",
        "netg",
        "netd",
        "g",
        "d",
        "embedder",
    ]
)
_CRITERION_NAMES = frozenset(
    ["criterion", "crit", "loss_fn", "loss_func", "loss_function", "lossfn", "criteria", "bce"]
)
_LOADER_NAMES = frozenset(
    ["dl", "train_dl", "val_dl", "valid_dl", "test_dl", "batches", "dataloaders", "data_iter", "train_iter"]
)


# `opt`, `optim_g`, `optD`, `optimizers`, but no `optimal_lr`, `optimize_steps` or `optree`.
_IS_OPTIMIZER = re.compile(r"[oO]pt((im|imi[sz]er)?s?(?![a-z])|(im)?[a-z]?$|imi[sz]er)").match


# What several kinds of things have: alone it does not tell a module from an optimizer.
_STATE = frozenset(["state_dict", "load_state_dict"])
_WITH_STATE = (Kind.OPTIMIZER, Kind.SCHEDULER, Kind.SCALER)


def by_use(uses: frozenset[str]) -> Kind | None:
    """From the attributes that a function takes of its argument."""
    if uses & {"unscale_", "get_scale"} or {"scale", "update"} <= uses:
        return Kind.SCALER
    if "param_groups" in uses or {"zero_grad", "step"} <= uses:
        return Kind.OPTIMIZER
    if uses & {"get_last_lr", "last_epoch"}:
        return Kind.SCHEDULER
    if uses & {"parameters", "state_dict", "named_parameters", "modules", "load_state_dict", "named_modules"}:
        return Kind.MODULE
    if {"train", "eval"} <= uses:
        return Kind.MODULE
    if "set_epoch" in uses:
        return Kind.SAMPLER
    if uses & {"batch_size", "batch_sampler"} and "dataset" in uses:
        return Kind.LOADER
    return None


def is_of_lightning(name: str) -> bool:
    """Is a qualified name one of Lightning's, under either of its import names?"""
    return name.startswith(("lightning.", "pytorch_lightning."))


def runs_without_gradients(function: Function) -> bool:
    """`update` of a metric of torchmetrics'. [torchmetrics 1.9 `Metric._wrap_update`]"""
    if function.name != "update" or not isinstance(function.self, Obj) or function.self.cls is None:
        return False
    return any(base.startswith("torchmetrics.") for base in function.self.cls.library_bases)


# What the hooks of a `Callback` of Lightning are given, behind `self`. [lightning.pytorch.callbacks.Callback]
_OF_CALLBACK = (Kind.TRAINER, Kind.MODULE)


def by_position(cls: Class | None, name: str, position: int) -> Kind | None:
    """From the place of an argument in a method that a framework calls."""
    if cls is None or not name.startswith(("on_", "setup", "teardown")) or not 0 < position < 3:
        return None
    is_callback = any(is_of_lightning(base) and base.endswith(".Callback") for base in cls.library_bases)
    return _OF_CALLBACK[position - 1] if is_callback else None


def is_model_of_callback(cls: Class, hook: str, name: str) -> bool:
    """What transformers' Trainer gives its callbacks by this name.

    [transformers `CallbackHandler.call_event`: model=self.model]
    """
    is_callback = "transformers.TrainerCallback" in cls.library_bases
    return is_callback and hook.startswith("on_") and name == "model"


def by_name(name: str) -> Kind | None:
    """From a conventional name."""
    plain = name.strip("_")
    low = plain.lower()
    if _IS_OPTIMIZER(low if plain.isupper() else plain) and low not in ("opts", "opt_level"):
        return Kind.OPTIMIZER
    if low.endswith(("_opt", "optim", "optimizer", "optimiser")) or low in ("sgd", "adam"):
        return Kind.OPTIMIZER
    if low in ("scaler", "grad_scaler", "gradscaler"):
        return Kind.SCALER
    if "sched" in low and not low.endswith(("type", "name")):
        return Kind.SCHEDULER
    if low in _CRITERION_NAMES or low.endswith(("criterion", "loss_fn")):
        return Kind.CRITERION
    if low in _LOADER_NAMES or low.endswith(("loader", "loaders", "_dl")):
        return Kind.LOADER
    if low.endswith("sampler"):
        return Kind.SAMPLER
    if low in _MODULE_NAMES or low.endswith(("model", "_net", "network")):
        return Kind.MODULE
    return None


def by_annotation(name: str) -> Kind | None:
    """From the qualified name of a library class."""
    last = name.rpartition(".")[2]
    if last in ("Module", "LightningModule", "PreTrainedModel", "DistributedDataParallel", "Sequential"):
        return Kind.MODULE
    if last == "Optimizer" or (name.startswith("torch.optim.") and "lr_scheduler" not in name):
        return Kind.OPTIMIZER
    if "lr_scheduler" in name or last == "LRScheduler":
        return Kind.SCHEDULER
    if last == "DataLoader":
        return Kind.LOADER
    if last == "GradScaler":
        return Kind.SCALER
    if last == "Accelerator":
        return Kind.ACCELERATOR
    if last == "Fabric":
        return Kind.FABRIC
    if last == "Trainer" and is_of_lightning(name):
        return Kind.TRAINER
    if last.endswith("Sampler"):
        return Kind.SAMPLER
    if last == "Parameter":
        return Kind.PARAMETER
    return None


def guess(name: str, uses: frozenset[str]) -> tuple[Kind, Origin]:
    """Use first, then the name; an object of unknown kind otherwise."""
    kind = by_use(uses)
    named = by_name(name)
    if kind is not None and not (named in _WITH_STATE and uses & _STATE and uses <= _STATE | {"step"}):
        return kind, Origin.USED
    kind = named
    if kind is not None:
        return kind, Origin.NAMED
    if "zero_grad" in uses:
        return Kind.MODULE, Origin.USED
    return Kind.OPAQUE, Origin.UNSEEN
