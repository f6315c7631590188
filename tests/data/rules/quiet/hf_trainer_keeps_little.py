# The metric needs the chosen tokens only, which is what is kept.
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def preprocess_logits_for_metrics(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(outputs):
    preds, labels = outputs
    return {"accuracy": (preds[:, :-1] == labels[:, 1:]).mean()}


def main(train, held_out):
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    args = TrainingArguments(output_dir="out", eval_strategy="epoch", per_device_eval_batch_size=4)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics,
    )
    trainer.train()
    print(trainer.evaluate())
