"""eval-logits-on-device: an evaluation keeps the scores of all its tokens on the card until its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchwise_analysis.findings import Confidence, Edit, Evidence, Fix, Place, Safety, Severity
from torchwise_analysis.fixes import SourceFile, expression_at, insert_at
from torchwise_analysis.interp.abstract.trace import Trace
from torchwise_analysis.interp.abstract.values import Arguments, Const, Kind, Obj, Value, alternatives
from torchwise_analysis.rules._framework import Category, Example, Hit, Reference, Rule
from torchwise_analysis.rules._reading import distinct, step
from torchwise_analysis.source import nodes

WRONG = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def f(outputs):
    return {"accuracy": (outputs.predictions.argmax(-1) == outputs.label_ids).mean()}


def main(train, test):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", eval_strategy="epoch")
    run = Trainer(model, args, None, train, test, compute_metrics=f)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-logits-on-device warning certain
    run.train()
"""

RIGHT = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def scores(outputs):
    return {"accuracy": (outputs.predictions == outputs.label_ids).mean()}


def chosen(logits, labels):
    return logits.argmax(-1)


def main(train, held_out):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", eval_strategy="epoch")
    run = Trainer(
        model,
        args,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=scores,
        preprocess_logits_for_metrics=chosen,
    )
    run.train()
"""

RULE = Rule(
    code="TW808",
    name="eval-logits-on-device",
    category=Category.PERFORMANCE,
    severity=Severity.WARNING,
    claim="The Trainer keeps the logits of a whole evaluation on the card, one for each word it knows.",
    cost=(
        "With `compute_metrics` the Trainer collects the outputs of all batches before it calls it, and by "
        "default it collects them on the device. 1,024 tokens with 50,257 scores each are 206 MB in float32: "
        "after some hundred samples the card is full. The run dies in its first evaluation, after the "
        "first epoch was paid for."
    ),
    wrong=Example("Accuracy from all logits", WRONG),
    right=Example("Only what the metric needs is kept", RIGHT),
    silent=(
        "`preprocess_logits_for_metrics`, `eval_accumulation_steps` or `batch_eval_metrics` is given",
        "no `compute_metrics`, or `prediction_loss_only=True`: logits are dropped",
        "`predict_with_generate=True`, which keeps numbers of tokens",
        "models that give a few scores for each sample, and models that are not seen being made",
        "nothing is evaluated, or the arguments come from elsewhere (`**options`, a parser)",
    ),
    grading="A warning, and certain: model, arguments and metric are made in view.",
    fix=(
        "`eval_accumulation_steps=16`: logits move to the memory of the host every 16 steps. Unsafe in that "
        "evaluation takes longer and needs that memory; `preprocess_logits_for_metrics` is better where the "
        "metric needs less than all logits."
    ),
    references=(
        Reference(
            "Trainer: compute_metrics, preprocess_logits_for_metrics",
            "https://huggingface.co/docs/transformers/main_classes/trainer",
        ),
        Reference(
            "TrainingArguments.eval_accumulation_steps",
            "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments",
        ),
    ),
    examples=(
        Example(
            "Called for by name, with a masked model",
            """
from transformers import BertForMaskedLM, Trainer, TrainingArguments


def main(held_out, f):
    model = BertForMaskedLM.from_pretrained("bert-base-uncased")
    args = TrainingArguments(output_dir="out", per_device_eval_batch_size=8)
    run = Trainer(model, args, eval_dataset=held_out, compute_metrics=f)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-logits-on-device warning certain
    print(run.evaluate())
""",
            fixed="""
from transformers import BertForMaskedLM, Trainer, TrainingArguments


def main(held_out, f):
    model = BertForMaskedLM.from_pretrained("bert-base-uncased")
    args = TrainingArguments(output_dir="out", per_device_eval_batch_size=8, eval_accumulation_steps=16)
    run = Trainer(model, args, eval_dataset=held_out, compute_metrics=f)
    print(run.evaluate())
""",
        ),
        Example(
            "A Trainer of the project",
            """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs, num_items_in_batch=num_items_in_batch)
        return (out.loss, out) if return_outputs else out.loss


def main(train, held_out, f):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", evaluation_strategy="steps", eval_steps=500)
    run = Mine(model, args, None, train, held_out, compute_metrics=f)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-logits-on-device warning certain
    run.train()
""",
        ),
        Example(
            "The collator tells that it is a language model",
            """
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments


def main(model, tokenizer, test, f):
    args = TrainingArguments("out", do_eval=True)
    words = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    run = Trainer(model, args, words, None, test, compute_metrics=f)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ eval-logits-on-device warning certain
    run.evaluate()
""",
        ),
        Example(
            "Two scores for each sample",
            """
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


def main(train, held_out, scores):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
    args = TrainingArguments("out", eval_strategy="epoch")
    Trainer(model, args, train_dataset=train, eval_dataset=held_out, compute_metrics=scores).train()
""",
        ),
        Example(
            "Only the loss, and numbers of generated tokens",
            """
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)


def main(train, held_out, scores):
    first = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments("out", eval_strategy="epoch")
    Trainer(first, args, train_dataset=train, eval_dataset=held_out).train()
    second = AutoModelForSeq2SeqLM.from_pretrained("t5-small")
    more = Seq2SeqTrainingArguments("out", eval_strategy="epoch", predict_with_generate=True)
    Seq2SeqTrainer(second, more, train_dataset=train, eval_dataset=held_out, compute_metrics=scores).train()
""",
        ),
        Example(
            "Moved to the host every few steps, or nothing is evaluated",
            """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def main(train, held_out, scores):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    often = TrainingArguments("out", eval_strategy="epoch", eval_accumulation_steps=8)
    Trainer(model, often, train_dataset=train, eval_dataset=held_out, compute_metrics=scores).train()
    never = TrainingArguments("out")
    Trainer(model, never, train_dataset=train, eval_dataset=held_out, compute_metrics=scores).train()
""",
        ),
    ),
)

_WORDS = (
    "ForCausalLM",
    "ForMaskedLM",
    "ForSeq2SeqLM",
    "ForConditionalGeneration",
    "LMHeadModel",
    "ForPreTraining",
)
_TRAINERS = frozenset(["transformers.Trainer", "transformers.Seq2SeqTrainer"])


class _Found(NamedTuple):
    arguments: Place | None


def detect(trace: Trace) -> Iterator[Hit]:
    evaluated = {
        event.receiver.id
        for event in trace.api("transformers.Trainer.", "transformers.Seq2SeqTrainer.")
        if event.receiver is not None and event.name.endswith((".evaluate", ".predict"))
    }
    for trainer in trace.objects.values():
        if not _is_trainer(trainer) or trainer.arguments.open or trainer.place is None:
            continue
        model = _model(trainer.arguments.get("model", 0)) or _collator(trainer.arguments)
        metric = trainer.arguments.get("compute_metrics", 8)
        settings = trainer.arguments.get("args", 1)
        if model is None or not _is_given(metric) or not isinstance(settings, Obj):
            continue
        if _is_given(trainer.arguments.get("preprocess_logits_for_metrics")):
            continue
        if _keeps_logits(settings) and (trainer.id in evaluated or _evaluates(settings)):
            yield _hit(trainer, trainer.place, model, settings)


def _is_trainer(obj: Obj) -> bool:
    if obj.type_name in _TRAINERS and obj.kind is Kind.TRAINER:
        return True
    return obj.cls is not None and any(base in _TRAINERS for base in obj.cls.library_bases)


def _is_given(value: Value | None) -> bool:
    return value is not None and not (isinstance(value, Const) and not value.value)


def _model(value: Value | None, depth: int = 0) -> Obj | None:
    """A language model, perhaps inside an adapter."""
    for member in alternatives(value) if value is not None else ():
        if not isinstance(member, Obj) or depth > 3:
            continue
        if any(word in member.type_name for word in _WORDS):
            return member
        if member.type_name.startswith("peft."):
            return _model(member.arguments.get("model", 0), depth + 1)
    return None


def _collator(arguments: Arguments) -> Obj | None:
    """The collator for language models, which says that each token is a target."""
    given = arguments.get("data_collator", 2)
    for member in alternatives(given) if given is not None else ():
        if isinstance(member, Obj) and member.type_name.endswith("DataCollatorForLanguageModeling"):
            return member
    return None


def _keeps_logits(settings: Obj) -> bool:
    given = settings.arguments
    if given.open or not settings.type_name.endswith("TrainingArguments"):
        return False
    off = ("eval_accumulation_steps", "prediction_loss_only", "predict_with_generate", "batch_eval_metrics")
    return not any(_is_given(given.get(name)) for name in off)


def _evaluates(settings: Obj) -> bool:
    for name in ("eval_strategy", "evaluation_strategy"):
        value = settings.arguments.get(name)
        if isinstance(value, Const) and value.value != "no":
            return True
    return False


def _hit(trainer: Obj, place: Place, model: Obj, settings: Obj) -> Hit:
    return Hit(
        place,
        Severity.WARNING,
        Confidence.CERTAIN,
        "each evaluation keeps the logits of all samples on the device, a score for every word of the "
        "vocabulary, until `compute_metrics` is called. Set "
        "`eval_accumulation_steps`, or keep less with `preprocess_logits_for_metrics`.",
        distinct(
            (
                *step(model.place, "this tells that the model gives a score for each word"),
                *step(settings.place, "its arguments move no logits off the device"),
                Evidence(place, "and `compute_metrics` wants those of all samples"),
            )
        ),
        frozenset({("trainer", trainer.id)}),
        _Found(settings.place),
    )


def fixes(hit: Hit, file: SourceFile) -> Iterator[Fix]:
    place = hit.facts.arguments if isinstance(hit.facts, _Found) else None
    edit = _edit(file, place) if place is not None else None
    title = "Move logits to the host every 16 steps (evaluation takes longer)"
    yield Fix(title, Safety.ADVICE if edit is None else Safety.UNSAFE, () if edit is None else (edit,))


def _edit(file: SourceFile, place: Place) -> Edit | None:
    call = expression_at(file.module, place.span) if place.path == file.path else None
    if not isinstance(call, nodes.Call) or not (call.args or call.keywords):
        return None
    ends = [arg.span for arg in call.args] + [keyword.value.span for keyword in call.keywords]
    last = max(ends, key=lambda span: (span.end_line, span.end_column))
    last = last.shifted(place.span.line - call.span.line)
    return insert_at(file, last.end_line, last.end_column, ", eval_accumulation_steps=16")
