# A method called inference switches autograd off itself, or does not: nothing shows that it records.
import torch
from torch_geometric.llm.models import LLM, GRetriever


def inference_step(model, batch):
    return model.inference(batch.question, batch.desc, max_out_tokens=128)


def train(loader):
    model = GRetriever(llm=LLM(model_name="x"), gnn=None)
    optimizer = torch.optim.AdamW(model.parameters())
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch.question, batch.desc, batch.label)
        loss.backward()
        optimizer.step()
    model.eval()
    return model


def test(model, loader):
    tuples = []
    for batch in loader:
        preds = inference_step(model, batch)
        for question, pred, label in zip(batch.question, preds, batch.label):
            tuples.append((question, pred, label))
    return tuples


if __name__ == "__main__":
    model = train([])
    test(model, [])
