"""Who owns what under a framework, decided by the object and never by a word in the text.

Sources: lightning 2.6.6, accelerate 1.15.0, transformers 5.24.0 (the owner table of the rule
catalogue); DeepSpeed's engine divides by its accumulation steps (`scale_wrt_gas`).
"""

from __future__ import annotations

from dataclasses import replace

from torchwise_analysis.interp.abstract import beliefs, calls, unknowns
from torchwise_analysis.interp.abstract import events as ev
from torchwise_analysis.interp.abstract import values as va
from torchwise_analysis.interp.abstract.machine import NOT_RECORDING, Hook, Machine, first_known
from torchwise_analysis.semantics import distributed, engines, modules, tensors
from torchwise_analysis.semantics.by_name import SOME_OPTIMIZER
from torchwise_analysis.semantics.registry import Call, fallback, function, method, truth_of
from torchwise_analysis.source import nodes as nd

_LIGHTNING_EVALUATION = frozenset(
    [
        "validation_step",
        "test_step",
        "predict_step",
        "on_validation_epoch_end",
        "on_test_epoch_end",
        "on_predict_epoch_end",
        "on_validation_epoch_start",
        "on_test_epoch_start",
        "on_validation_batch_end",
        "on_test_batch_end",
        "validation_epoch_end",
        "test_epoch_end",
        "on_validation_start",
        "on_validation_end",
        "on_test_start",
        "on_test_end",
        "on_validation_batch_start",
    ]
)
_LIGHTNING_HOOKS = frozenset(
    [
        "training_step",
        "configure_optimizers",
        "on_before_optimizer_step",
        "optimizer_step",
        "on_after_backward",
        "optimizer_zero_grad",
        "on_train_epoch_end",
        "on_train_epoch_start",
        "on_train_batch_end",
        "on_train_batch_start",
        "on_train_start",
        "on_train_end",
        "lr_scheduler_step",
        "configure_gradient_clipping",
        "backward",
        "training_epoch_end",
        "train_dataloader",
        "val_dataloader",
        "test_dataloader",
        "setup",
        "prepare_data",
        "on_fit_start",
        "on_fit_end",
        "on_before_zero_grad",
        "on_before_backward",
        "configure_model",
        "on_save_checkpoint",
        "on_load_checkpoint",
    ]
)
_TRAINER_HOOKS = frozenset(
    ["compute_loss", "training_step", "prediction_step", "evaluate", "predict", "evaluation_loop"]
)


# --------------------------------------------------------------------------- hooks


def is_lightning(obj: va.Obj) -> bool:
    return obj.type_name == unknowns.LIGHTNING_MODULE or (
        obj.cls is not None and obj.cls.derives("LightningModule")
    )


def is_hf_trainer(obj: va.Obj) -> bool:
    if obj.cls is None:
        return False
    return any(
        b.rpartition(".")[2].endswith("Trainer")
        and b.split(".")[0] in ("transformers", "trl", "setfit", "sentence_transformers")
        for b in obj.cls.library_bases
    )


def is_manual(m: Machine, obj: va.Obj) -> bool:
    """Did the LightningModule switch automatic optimization off?"""
    flag = m.attribute(obj, "automatic_optimization")
    if flag is None and obj.cls is not None:
        flag = calls.find_member(m, obj.cls, "automatic_optimization")
        if isinstance(flag, va.Function):
            return True
    return flag is not None and truth_of(first_known(flag), True) is not True


def is_lightning_callback(obj: va.Obj) -> bool:
    return obj.cls is not None and any(
        beliefs.is_of_lightning(base) and base.endswith(".Callback") for base in obj.cls.library_bases
    )


def hook(m: Machine, obj: va.Obj, name: str) -> Hook | None:
    if is_lightning_callback(obj):
        if name in _LIGHTNING_EVALUATION:
            return Hook("lightning", name, NOT_RECORDING)
        return Hook("lightning", name) if name in _LIGHTNING_HOOKS else None
    if is_lightning(obj):
        if name in _LIGHTNING_EVALUATION:
            return Hook("lightning", name, NOT_RECORDING)
        if name in _LIGHTNING_HOOKS:
            automatic = not is_manual(m, obj) and name == "training_step"
            return Hook("lightning", name, None, automatic, automatic)
        return None
    if obj.cls is not None and obj.cls.derives("LightningDataModule") and name.endswith("_dataloader"):
        return Hook("lightning", name)
    if is_hf_trainer(obj) and name in _TRAINER_HOOKS:
        if name in ("prediction_step", "evaluate", "predict", "evaluation_loop"):
            return Hook("transformers", name, NOT_RECORDING)
        return Hook("transformers", name, None, False, True)
    return None


def hook_returned(m: Machine, hook_: Hook, obj: va.Obj, function_: va.Function, value: va.Value) -> None:
    """What the framework does with what a hook returned."""
    place = m.entry.place
    if hook_.returns_loss:
        # dictionaries carry the loss and whatever else; the framework detaches the rest
        accepts = truth_of(m.attribute(obj, "model_accepts_loss_kwargs"), True)
        divides = accepts is False or not _drops_item_count(m, function_)
        m.backward(value, m.returned or place, how="managed", divides=divides, owner=obj)
        return
    m.emit(ev.Configured, place, hook=hook_.name, owner=obj, value=value)
    for tensor in m.tensors(value):
        m.escaped_passes |= tensor.passes
        m.escaped_tokens |= tensor.tokens


def _drops_item_count(m: Machine, function_: va.Function) -> bool:
    """Does `compute_loss` take `num_items_in_batch` and not use it?

    The Trainer then neither divides the loss itself nor gets one that is divided. [transformers
    `Trainer.training_step`: divides only when the model takes no loss keywords]
    """
    node = function_.node
    m.note_read(function_.code)
    if not isinstance(node, nd.FunctionDef) or node.name != "compute_loss":
        return False
    name = "num_items_in_batch"
    return any(p.name == name for p in node.params) and name not in m.body_facts(node.body).names


# --------------------------------------------------------------------------- lightning


@method(va.Kind.MODULE, "optimizers")
def lightning_optimizers(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if not is_lightning(obj):
        return None
    known = m.attribute(obj, "[optimizers]")
    if known is not None:
        return known
    found = _made_of(m, _configured(m, obj, call), va.Kind.OPTIMIZER)
    if not found:
        one = m.make(va.Kind.OPTIMIZER, call.node, "lightning.LightningOptimizer", name="optimizers()")
        m.owns[one.id] = frozenset([obj.id])
        m.state.set(("a", obj.id, "[optimizers]"), one)
        return one
    return found[0] if len(found) == 1 else m.sequence(found, call.node)


_RANKED = frozenset(["is_global_zero", "global_rank", "local_rank", "node_rank", "world_size"])


def lightning_attribute(m: Machine, obj: va.Obj, name: str) -> va.Value | None:
    """`self.trainer`, and which rank this is, as trainer and module both tell."""
    is_module = is_lightning(obj)
    if is_module and name == "trainer":
        part = m.child(obj, name, va.Kind.TRAINER)
        assert isinstance(part, va.Obj)
        trainer_ = replace(part, type_name=unknowns.LIGHTNING_TRAINER)
        m.state.set(("a", obj.id, name), trainer_)
        return trainer_
    is_trainer = obj.kind is va.Kind.TRAINER and obj.type_name == unknowns.LIGHTNING_TRAINER
    if name not in _RANKED or not (is_module or is_trainer):
        return None
    own = frozenset[str]() if name == "world_size" else frozenset(["this rank"])
    return va.unknown(f"{obj.symbol or obj.name}.{name}", taint=frozenset(["rank"]) | own)


@method(va.Kind.MODULE, "all_gather")
def lightning_gather(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """[lightning `LightningModule.all_gather`: every rank has to call it]"""
    if not is_lightning(obj):
        return None
    return _gathered(m, obj, "lightning.LightningModule.all_gather", call)


def _configured(m: Machine, obj: va.Obj, call: Call) -> va.Value:
    """What configure_optimizers returns, which runs once."""
    known = m.attribute(obj, va.CONFIGURED)
    if known is not None or obj.cls is None:
        return known or va.NONE
    own = calls.find_member(m, obj.cls, "configure_optimizers")
    value: va.Value = va.NONE
    if isinstance(own, va.Function):
        value = calls.call_function(m, replace(own, self=obj), va.NO_ARGUMENTS, call.node)
    m.state.set(("a", obj.id, va.CONFIGURED), value)
    return value


def _made_of(m: Machine, value: va.Value, kind: va.Kind, depth: int = 0) -> list[va.Value]:
    """The optimizers, or schedulers, that configure_optimizers returned, in order."""
    known = first_known(value)
    if isinstance(known, va.Obj):
        if known.kind is kind:
            return [known]
        if known.kind in (va.Kind.LIST, va.Kind.TUPLE, va.Kind.DICT) and depth < 3:
            inner = [*m.items(known), *m.entries(known).values()]
            return [o for i in inner for o in _made_of(m, i, kind, depth + 1)]
    return []


@method(va.Kind.MODULE, "manual_backward")
def manual_backward(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    keep = truth_of(call.get("retain_graph"), False) is not False
    m.backward(call.first(), call.node, keep, how="manual", owner=obj)
    if m.automatic is not None:
        m.emit(ev.ManualUnderAutomatic, call.node, what="backward")
    return va.NONE


@method(
    va.Kind.MODULE,
    "log",
    "log_dict",
    "print",
    "save_hyperparameters",
    "toggle_optimizer",
    "untoggle_optimizer",
    "freeze",
)
def lightning_log(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if call.name == "freeze" and (is_lightning(obj) or obj.cls is None):
        modules.set_requires_grad(m, frozenset([obj.id]), False, call.node)
        return va.NONE
    if not is_lightning(obj):
        return None
    if call.name in ("log", "log_dict"):
        name = f"lightning.LightningModule.{call.name}"
        m.emit(ev.ApiCall, call.node, name=name, arguments=call.arguments, receiver=obj)
    return va.NONE


@method(va.Kind.MODULE, "clip_gradients")
def lightning_clip(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    if not is_lightning(obj):
        return None
    before = {o.id: m.gradients(o) for o in m.reached_optimizers({obj.id})}
    m.emit(
        ev.Clip,
        call.node,
        how="lightning.clip_gradients",
        before=before,
        roots=frozenset([obj.id]),
        owner=obj,
    )
    return va.NONE


@method(va.Kind.MODULE, "lr_schedulers")
def lightning_schedulers(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """One alone when there is one, as `optimizers()` gives them."""
    if not is_lightning(obj):
        return None
    found = _made_of(m, _configured(m, obj, call), va.Kind.SCHEDULER)
    if not found:
        return m.child(obj, "[schedulers]", va.Kind.SCHEDULER)
    return found[0] if len(found) == 1 else m.sequence(found, call.node)


# --------------------------------------------------------------------------- accelerate, fabric


@function("accelerate.Accelerator")
def accelerator(m: Machine, call: Call) -> va.Value:
    obj = m.make(va.Kind.ACCELERATOR, call.node, call.name, arguments=call.arguments, name="accelerator")
    m.emit(ev.ProcessGroup, call.node, how=call.name, owner=obj)
    return obj


@function("lightning.fabric.Fabric", "lightning.Fabric")
def fabric(m: Machine, call: Call) -> va.Value:
    obj = m.make(va.Kind.FABRIC, call.node, call.name, arguments=call.arguments, name="fabric")
    m.emit(ev.ProcessGroup, call.node, how=call.name, owner=obj)
    return obj


@method(
    va.Kind.ACCELERATOR,
    "prepare",
    "prepare_model",
    "prepare_optimizer",
    "prepare_data_loader",
    "prepare_scheduler",
)
@method(va.Kind.FABRIC, "setup", "setup_module", "setup_optimizers", "setup_dataloaders")
def prepare(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    objects: list[va.Obj] = []
    given = enumerate(call.arguments.positional)
    results = [_prepared(m, owner, _by_role(m, call, n, value), call, objects) for n, value in given]
    is_open = call.arguments.open or any(_is_unseen(first_known(value)) for value in call.arguments)
    is_lost = call.node is m.discarded
    m.emit(ev.Prepared, call.node, owner=owner, objects=tuple(objects), open=is_open, lost=is_lost)
    return results[0] if len(results) == 1 else m.sequence(results, call.node, va.Kind.TUPLE)


def _by_role(m: Machine, call: Call, position: int, value: va.Value) -> va.Value:
    """What is unseen and given as an optimizer is one: to `setup_optimizers`, to `setup` behind a module."""
    is_behind = call.name == "setup" and position > 0
    is_optimizer = is_behind or call.name in ("setup_optimizers", "prepare_optimizer")
    known = first_known(value)
    is_unseen = isinstance(known, va.Unknown) or (
        isinstance(known, va.Obj) and known.kind is va.Kind.OPAQUE and not m.items(known)
    )
    if not is_optimizer or not is_unseen:
        return value
    optimizer = m.make(va.Kind.OPTIMIZER, call.node, SOME_OPTIMIZER)
    m.owns[optimizer.id] = None
    return optimizer


def _is_unseen(value: va.Value) -> bool:
    """Not a thing made in view: it may be, or hold, anything."""
    if isinstance(value, va.Obj):
        return value.place is None and value.kind in (va.Kind.OPAQUE, va.Kind.LIST, va.Kind.TUPLE)
    return not isinstance(value, va.Const)


def _prepared(m: Machine, owner: va.Obj, value: va.Value, call: Call, objects: list[va.Obj]) -> va.Value:
    known = first_known(value)
    if not isinstance(known, va.Obj):
        return value
    objects.append(known)
    m.prepared.pop(known.id, None)
    if (known.kind is va.Kind.OPTIMIZER and owner.kind is va.Kind.ACCELERATOR) or known.kind in (
        va.Kind.LOADER,
        va.Kind.SCHEDULER,
    ):
        m.prepared[known.id] = owner
    elif known.kind is va.Kind.MODULE:
        wrapped = distributed.wrap(m, known, "prepared", call)
        if isinstance(wrapped, va.Obj):
            m.prepared[wrapped.id] = owner
        return wrapped
    return known


@method(va.Kind.ACCELERATOR, "backward")
@method(va.Kind.FABRIC, "backward")
def owned_backward(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    divides = owner.kind is va.Kind.ACCELERATOR
    keep = truth_of(call.get("retain_graph"), False) is not False
    how = "accelerator" if divides else "fabric"
    m.backward(call.first(), call.node, keep, how=how, divides=divides, owner=owner)
    return va.NONE


@method(va.Kind.ACCELERATOR, "accumulate")
def accumulate(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    known = first_known(call.first()) if call.first() is not None else None
    m.emit(
        ev.NoSync,
        call.node,
        how="accumulate",
        owner=owner,
        module=known if isinstance(known, va.Obj) else None,
    )
    return va.Context(None, "accumulate", owner=owner)


@method(va.Kind.FABRIC, "no_backward_sync")
@method(va.Kind.ACCELERATOR, "no_sync")
def no_sync(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    known = first_known(call.first()) if call.first() is not None else None
    module = known if isinstance(known, va.Obj) else None
    enabled = truth_of(call.get("enabled", 1), True)
    m.emit(ev.NoSync, call.node, how=call.name, owner=owner, module=module)
    return va.Context(None, "no_sync" if enabled is not False else "exit", owner=owner)


@method(
    va.Kind.ACCELERATOR,
    "autocast",
    "profile",
    "main_process_first",
    "local_main_process_first",
    "join_uneven_inputs",
)
@method(va.Kind.FABRIC, "autocast", "init_module", "init_tensor", "rank_zero_first")
def owned_context(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    return va.Context(None, "exit", owner=owner)


@method(va.Kind.ACCELERATOR, "clip_grad_norm_", "clip_grad_value_")
@method(va.Kind.FABRIC, "clip_gradients")
def owned_clip(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    from torchwise_analysis.semantics.optimizers import parameter_roots

    roots, _ = parameter_roots(m, call.first())
    before = {
        o.id: frozenset(replace(a, scaled=False) for a in m.gradients(o)) for o in m.reached_optimizers(roots)
    }
    m.emit(ev.Clip, call.node, how=call.name, before=before, roots=roots, owner=owner)
    return va.UNKNOWN


@method(va.Kind.ACCELERATOR, "unscale_gradients")
def owned_unscale(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    given = first_known(call.first() or va.NONE)
    for optimizer in m.optimizers:
        is_meant = not isinstance(given, va.Obj) or given.id == optimizer.id or given.kind is va.Kind.LIST
        if is_meant and optimizer.id in m.prepared:
            m.emit(ev.Unscale, call.node, scaler=owner, optimizer=optimizer, before=m.gradients(optimizer))
    return va.NONE


@method(va.Kind.ACCELERATOR, "unwrap_model")
def unwrap_model(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    known = first_known(call.first() or va.UNKNOWN)
    if isinstance(known, va.Obj):
        return modules.unwrap(m, known)[0]
    return known


@method(
    va.Kind.ACCELERATOR,
    "gather",
    "gather_for_metrics",
    "reduce",
    "pad_across_processes",
    "wait_for_everyone",
    "save_state",
)
@method(va.Kind.FABRIC, "all_gather", "all_reduce", "barrier", "broadcast", "save")
def owned_collective(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    return _gathered(m, owner, f"{owner.type_name}.{call.name}", call)


def _gathered(m: Machine, owner: va.Obj, name: str, call: Call) -> va.Value:
    m.emit(
        ev.Collective,
        call.node,
        name=name,
        group=None,
        sources=frozenset(s for t in m.all_tensors(call.arguments) for s in t.sources),
        followed=True,
    )
    value = call.first()
    if call.name in ("save", "save_state"):
        m.emit(
            ev.Saved,
            call.node,
            how=f"{owner.kind.value}.{call.name}",
            value=call.get("state", 1),
            contents=_contents(m, call.get("state", 1)),
            path_value=value,
            arguments=call.arguments,
        )
    if call.name == "gather" and value is not None and m.tensors(value):
        value = m.map_tensors(value, lambda t: replace(t, taint=t.taint | {"gathered"}))
    if value is None:
        return va.NONE
    known = first_known(value)
    if owner.kind is va.Kind.FABRIC and call.name == "all_reduce" and isinstance(known, va.Tensor):
        m.exchange(known, tensors.reduced(known))  # [lightning.fabric: reduced in place, and given back]
    return _reduced(m, value, call.node) if call.name in _REDUCING else value


def _contents(m: Machine, state: va.Value | None) -> tuple[tuple[str, va.Value], ...]:
    known = first_known(state) if state is not None else va.UNKNOWN
    entries = m.entries(known) if isinstance(known, va.Obj) else {}
    return tuple((str(key), value) for key, value in entries.items())


@method(va.Kind.FABRIC, "load")
def fabric_load(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    """Loads into the things of `state` in place, numbers into the dictionary. [lightning `Fabric.load`]"""
    state = first_known(call.get("state", 1) or va.NONE)
    loaded = va.unknown(None, taint=frozenset(["loaded"]), varies=True)
    if isinstance(state, va.Obj) and state.kind is va.Kind.DICT:
        kept = dict(m.entries(state))
        for key, value in kept.items():
            known = first_known(value)
            if isinstance(known, va.Obj) and known.kind in (*_WITH_STATE, va.Kind.MODULE):
                m.emit(ev.WeightsLoaded, call.node, target=known, value=loaded, strict=True, result_used=True)
            else:
                kept[key] = loaded
        m.state.set(("d", state.id), kept)
    return loaded


_WITH_STATE = (va.Kind.OPTIMIZER, va.Kind.SCHEDULER)
_REDUCING = frozenset(["gather", "gather_for_metrics", "reduce", "all_gather", "all_reduce"])


def _reduced(m: Machine, value: va.Value, node: nd.Node, depth: int = 0) -> va.Value:
    """What comes back: of a tuple a new one with the parts of all ranks."""
    known = first_known(value)
    if isinstance(known, va.Obj) and known.kind in (va.Kind.TUPLE, va.Kind.LIST) and depth < 2:
        items = [_reduced(m, item, node, depth + 1) for item in m.items(known)]
        return m.sequence(items, node, known.kind)
    if isinstance(known, va.Obj) and known.kind is va.Kind.DICT and depth < 2:
        entries = {key: _reduced(m, item, node, depth + 1) for key, item in m.entries(known).items()}
        return m.mapping(entries, node)
    if isinstance(known, va.Obj) and known.kind is va.Kind.OPAQUE and m.is_data(known.id):
        known = value = va.Tensor(known.evidence)  # labels of a batch, as they came
    is_number = isinstance(known, (va.Tensor, va.Unknown))
    return tensors.agreed(tensors.reduced(known)) if is_number else value


@method(va.Kind.FABRIC, "launch", "seed_everything", "log", "log_dict", "print", "call")
def fabric_other(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    target = first_known(call.get("function", 0) or va.UNKNOWN)
    if call.name in ("log", "log_dict", "print"):
        tensors.report(m, call.arguments, call.node, "print" if call.name == "print" else "log")
    if call.name == "launch" and isinstance(target, va.Function):
        rest = va.Arguments((owner, *call.arguments.positional[1:]), call.arguments.keywords)
        return calls.call_function(m, target, rest, call.node)
    return va.NONE


@fallback(va.Kind.ACCELERATOR, va.Kind.FABRIC)
def owner_other(m: Machine, owner: va.Obj, call: Call) -> va.Value | None:
    if call.name == "to_device" and call.arguments.positional:
        return call.arguments.positional[0]
    if call.name in ("log", "print"):
        tensors.report(m, call.arguments, call.node, call.name)
    return va.unknown(f"{owner.name}.{call.name}()")


def owner_attribute(m: Machine, owner: va.Obj, name: str) -> va.Value:
    ranked = name in (
        "process_index",
        "local_process_index",
        "is_main_process",
        "is_local_main_process",
        "num_processes",
        "global_rank",
        "local_rank",
        "world_size",
        "is_global_zero",
        "is_last_process",
    )
    symbol = f"{owner.name}.{name}"
    if name == "sync_gradients":
        sync = m.scopes.sync
        if sync is not None and len(sync) == 1:
            return va.Const(None, True in sync, va.Counter())
    own = frozenset[str]() if name in ("num_processes", "world_size") else frozenset(["this rank"])
    return va.unknown(
        symbol, taint=frozenset(["rank"]) | own if ranked else frozenset(), varies=name == "sync_gradients"
    )


# --------------------------------------------------------------------------- peft


@function("peft.inject_adapter_in_model")
def inject_adapter(m: Machine, call: Call) -> va.Value:
    """The model itself comes back, with parts in it that learn."""
    model = first_known(call.get("model", 1) or va.UNKNOWN)
    if isinstance(model, va.Obj):
        m.state.drop(("frozen", model.id))
    return model


# --------------------------------------------------------------------------- deepspeed


@function("deepspeed.initialize")
def initialize(m: Machine, call: Call) -> va.Value:
    model = first_known(call.get("model", 1) or va.UNKNOWN)
    optimizer = first_known(call.get("optimizer", 2) or va.UNKNOWN)
    inner = (model,) if isinstance(model, va.Obj) else ()
    engine = m.make(
        va.Kind.ENGINE,
        call.node,
        call.name,
        over=inner,
        arguments=call.arguments,
        traits=frozenset(["wrapper", "engine"]),
    )
    m.emit(ev.ProcessGroup, call.node, how=call.name, owner=engine)
    owned: list[va.Obj] = [v for v in (model, optimizer) if isinstance(v, va.Obj)]
    m.emit(ev.Prepared, call.node, owner=engine, objects=tuple(owned))
    for obj in owned:
        m.engines[obj.id] = engine
        m.wrapped[obj.id] = "engine"
        if obj.kind is va.Kind.MODULE:
            m.adopt(obj, engine)
    m.engines[engine.id] = engine
    m.state.set(("a", engine.id, "module"), model)
    out = m.make(va.Kind.OPTIMIZER, call.node, "deepspeed.optimizer")
    m.owns[out.id] = frozenset([engine.id])
    m.engines[out.id] = engine
    # engine.step drives it; the plain loop rules have nothing to say about it
    m.optimizers = [o for o in m.optimizers if o.id not in (out.id, *(p.id for p in owned))]
    loader = m.make(va.Kind.LOADER, call.node, "deepspeed.DataLoader", traits=frozenset(["sharding"]))
    m.prepared[loader.id] = engine
    scheduler = m.make(va.Kind.SCHEDULER, call.node, "deepspeed.scheduler")
    m.prepared[scheduler.id] = engine
    return m.sequence((engine, out, loader, scheduler), call.node, va.Kind.TUPLE)


@method(va.Kind.ENGINE, "backward")
def engine_backward(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    scale = truth_of(call.get("scale_wrt_gas"), True)
    m.backward(call.first(), call.node, how="engine", divides=scale is not False, owner=engine)
    return va.NONE


@method(va.Kind.ENGINE, "step", "zero_grad")
def engine_step(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    m.emit(
        ev.ApiCall, call.node, name=f"deepspeed.engine.{call.name}", arguments=call.arguments, receiver=engine
    )
    if call.name == "step":
        m.raise_version(engine)
    return va.NONE


@method(va.Kind.ENGINE, "eval", "train")
def engine_mode(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    return modules.eval_(m, engine, call) if call.name == "eval" else modules.train(m, engine, call)


@method(va.Kind.ENGINE, "save_checkpoint", "load_checkpoint", "save_16bit_model")
def engine_checkpoint(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    m.emit(ev.Collective, call.node, name=f"deepspeed.{call.name}", group=None)
    if call.name != "load_checkpoint":
        m.emit(
            ev.Saved,
            call.node,
            how=f"deepspeed.{call.name}",
            value=None,
            contents=(),
            path_value=call.first(),
            arguments=call.arguments,
        )
    return va.UNKNOWN


@method(va.Kind.ENGINE, "is_gradient_accumulation_boundary")
def boundary(m: Machine, engine: va.Obj, call: Call) -> va.Value | None:
    return va.unknown("boundary", varies=True)


# --------------------------------------------------------------------------- trainers


@function(
    "lightning.Trainer",
    "transformers.Trainer",
    "transformers.Seq2SeqTrainer",
    "ignite.engine.Engine",
    "ignite.engine.create_supervised_trainer",
    "ignite.engine.create_supervised_evaluator",
    "trl.SFTTrainer",
    "trl.DPOTrainer",
    "trl.PPOTrainer",
    "trl.GRPOTrainer",
)
def trainer(m: Machine, call: Call) -> va.Value:
    m.emit(ev.ApiCall, call.node, name=call.name, arguments=call.arguments)
    obj = m.make(va.Kind.TRAINER, call.node, call.name, arguments=call.arguments)
    if call.last == "Engine":
        engines.begin(m, obj, call)
    return obj


@method(va.Kind.INSTANCE, "compute_loss")
def own_loss(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    """`super().compute_loss(model, inputs)` of a trainer: the model runs, its loss comes back, with what it
    gave when asked. [transformers `Trainer.compute_loss`]"""
    model = first_known(call.get("model", 0))
    if not is_hf_trainer(obj) or not isinstance(model, va.Obj):
        return None
    inputs = call.get("inputs", 1)
    given = va.Arguments((inputs,) if inputs is not None else ())
    outputs = calls.call_value(m, model, given, call.node)
    loss = replace(m.attach(None, (outputs,), call.node), reduction="mean", taint=frozenset(["loss"]))
    if truth_of(call.get("return_outputs", 2), False) is False:
        return loss
    return m.sequence((loss, outputs), call.node, va.Kind.TUPLE)


@method(
    va.Kind.TRAINER,
    "fit",
    "train",
    "run",
    "validate",
    "test",
    "predict",
    "evaluate",
    "save_model",
    "save_checkpoint",
)
def trainer_method(m: Machine, obj: va.Obj, call: Call) -> va.Value | None:
    m.emit(ev.ApiCall, call.node, name=f"{obj.type_name}.{call.name}", arguments=call.arguments, receiver=obj)
    for value in call.arguments:
        for member in va.alternatives(value):
            if isinstance(member, va.Obj) and member.kind is va.Kind.LOADER:
                m.prepared[member.id] = obj
            if isinstance(member, va.Obj) and member.kind is va.Kind.MODULE:
                m.raise_version(member)
    if call.name == "save_checkpoint":
        m.emit(ev.Collective, call.node, name=f"{obj.type_name}.save_checkpoint", group=None)
    if call.name == "run":
        engines.run(m, obj, call)
    return va.UNKNOWN
