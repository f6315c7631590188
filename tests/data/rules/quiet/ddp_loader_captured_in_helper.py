# A helper makes a loader that the engine replaces; that a lambda in the helper names it keeps it no longer.
import deepspeed
from torch.utils.data import DataLoader
from datasets import load_dataset
from transformers import AutoModelForCausalLM, default_data_collator


def load(name):
    dataset = load_dataset(name)["train"]
    dataset = dataset.map(lambda row: (name, row))
    loader = DataLoader(dataset, batch_size=1, collate_fn=default_data_collator, shuffle=True)
    dataset.map(lambda row: len(loader))
    return dataset, loader


def main(args):
    model = AutoModelForCausalLM.from_pretrained(args.name)
    dataset, train_dataloader = load(args.dataset)
    model_engine, optimizer, train_dataloader, _ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        training_data=dataset,
        collate_fn=default_data_collator,
    )
    model_engine.train()
    for batch in train_dataloader:
        batch = {k: v.to(model_engine.device) for k, v in batch.items()}
        loss = model_engine(**batch).loss
        model_engine.backward(loss)
        model_engine.step()


if __name__ == "__main__":
    import argparse
    main(argparse.ArgumentParser().parse_args())
