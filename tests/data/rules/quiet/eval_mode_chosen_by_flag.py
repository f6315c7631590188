# The mode is chosen for the whole run, before any training.
from contextlib import nullcontext

from accelerate import Accelerator


def main(args, model, optimizer, data_loader, is_deepspeed):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    model, optimizer, data_loader = accelerator.prepare(model, optimizer, data_loader)
    if args.eval:
        model.eval()
    else:
        model.train()
    acc_context = nullcontext if is_deepspeed else accelerator.accumulate
    for epoch in range(args.num_epochs):
        for step, batch in enumerate(data_loader):
            with acc_context(model):
                outputs = model(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False)
                loss = outputs.loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
