"""Language model: two corpora, mixed by tokens and packed, trained, interrupted and resumed.

    python examples/programs/language_model.py

Makes a large and a small corpus, reads them as bytes (a tokenizer would be `transforms.Tokenize`), packs
documents into sequences of 64 tokens of which a quarter comes from the small corpus, and shows that a run
that stops goes on as if it had not.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

import torch_dataloader_utils as tdu

LENGTH, VOCABULARY, STEPS = 64, 256, 30


def make_corpora(folder):
    """Documents of the large one count up, those of the small one count down."""
    rng = np.random.default_rng(0)
    for name, documents, step in (("web", 2_000, 1), ("code", 200, -1)):
        texts = []
        for start, length in zip(rng.integers(1_000, 9_000, documents), rng.integers(5, 60, documents), strict=True):
            texts.append(" ".join(str(start + step * n) for n in range(length)))
        pq.write_table(pa.table({"text": texts}), folder / f"{name}.parquet", row_group_size=100)


def tokenize(rows):
    """The bytes of each text are its tokens: Arrow's own memory, seen as lists."""
    texts = pc.cast(rows["text"], pa.large_binary())
    _, offsets, data = texts.buffers()
    tokens = pa.Array.from_buffers(pa.uint8(), len(data), [None, data])
    lists = pa.LargeListArray.from_arrays(
        pa.Array.from_buffers(pa.int64(), len(texts) + 1, [None, offsets], offset=texts.offset), tokens
    )
    return pa.RecordBatch.from_arrays([pc.cast(lists, pa.large_list(pa.int64()))], ["input_ids"])


def corpora(folder):
    return tdu.combine(
        {"web": folder / "web.parquet", "code": folder / "code.parquet"},
        weights={"web": 3, "code": 1},  # of sequences, so of tokens
        stop="all",  # an epoch reads the large corpus once, and the small one as often as its weight asks
        columns=["text"],
        transform=tokenize,
        pack=tdu.Pack(LENGTH, method="wrap", labels="input_ids"),
        count_rows=True,  # tokenizes once to count the tokens, so that all shares are exact
        batch_size=16,
        shuffle=True,
    )


class Model(torch.nn.Module):
    """A recurrent network: small, and fast on a CPU."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.layers = torch.nn.GRU(32, 64, batch_first=True)
        self.scores = torch.nn.Linear(64, VOCABULARY)

    def forward(self, batch):
        scores = self.scores(self.layers(self.embedding(batch["input_ids"]))[0])
        # The label of a position is the token after it; -100 at padding and at the first token of a document.
        return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def train(loader, model, optimizer, steps):
    losses = []
    while len(losses) < steps:
        for batch in loader:
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


def begin():
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def main(folder):
    make_corpora(folder)
    loader = corpora(folder)
    print(loader.describe())
    whole = train(loader, *begin(), STEPS)
    print(f"loss {whole[0]:.2f} -> {whole[-1]:.2f} in {STEPS} steps")

    # The same, stopped half-way; what is saved goes into a new loader and a new model.
    loader, (model, optimizer) = corpora(folder), begin()
    first = train(loader, model, optimizer, STEPS // 2)
    saved = {"loader": loader.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, folder / "checkpoint.pt")

    saved, loader, (model, optimizer) = torch.load(folder / "checkpoint.pt"), corpora(folder), begin()
    loader.load_state_dict(saved["loader"])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert first + train(loader, model, optimizer, STEPS - STEPS // 2) == whole
    print("resumed: the same losses, to the last bit")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
