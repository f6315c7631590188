# Everything is prepared, lengths count all processes, metrics are gathered.
import argparse
import math

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, default_data_collator, get_scheduler


def main(train_dataset, eval_dataset):
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_train_steps", type=int, default=1000)
    parser.add_argument("--accumulation", type=int, default=4)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    train_dataloader = DataLoader(
        train_dataset, shuffle=True, collate_fn=default_data_collator, batch_size=8, num_workers=2
    )
    eval_dataloader = DataLoader(eval_dataset, collate_fn=default_data_collator, batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    lr_scheduler = get_scheduler(
        name="linear",
        optimizer=optimizer,
        num_warmup_steps=100 * accelerator.num_processes,
        num_training_steps=args.max_train_steps * accelerator.num_processes,
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    completed_steps = 0
    for epoch in range(100):
        model.train()
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                accelerator.backward(outputs.loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1
            if completed_steps >= args.max_train_steps:
                break
        model.eval()
        losses = []
        for step, batch in enumerate(eval_dataloader):
            with torch.no_grad():
                outputs = model(**batch)
            losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(8)))
        perplexity = math.exp(torch.mean(torch.cat(losses)))
        accelerator.print(f"epoch {epoch}: perplexity {perplexity}")
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained("out")
