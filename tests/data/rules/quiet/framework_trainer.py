import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
        loss = loss / num_items_in_batch if num_items_in_batch is not None else loss / len(labels)
        return (loss, outputs) if return_outputs else loss


trainer = Weighted(AutoModelForSequenceClassification.from_pretrained("bert"), TrainingArguments("out"), train_dataset=torch.load("d"))
trainer.train()
