# A configuration that a call gives is one thing: its settings take the same branch in every turn.
import torch
from my_defaults import DEFAULTS


def get_config():
    config = DEFAULTS.clone()
    config.freeze()
    return config


def train_one_epoch(config, model, criterion, data_loader, optimizer, scaler, lr_scheduler):
    model.train()
    optimizer.zero_grad()
    for idx, (samples, targets) in enumerate(data_loader):
        outputs = model(samples)
        if config.TRAIN.ACCUMULATION_STEPS > 1:
            loss = criterion(outputs, targets) / config.TRAIN.ACCUMULATION_STEPS
            scaler.scale(loss).backward()
            if (idx + 1) % config.TRAIN.ACCUMULATION_STEPS == 0:
                scaler.step(optimizer)
                optimizer.zero_grad()
                scaler.update()
                lr_scheduler.step_update(idx)
        else:
            loss = criterion(outputs, targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            lr_scheduler.step_update(idx)


def main(data_loader, build_scheduler):
    config = get_config()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(config.TRAIN.EPOCHS):
        train_one_epoch(config, model, torch.nn.CrossEntropyLoss(), data_loader, optimizer, scaler,
                        build_scheduler(config, optimizer))
