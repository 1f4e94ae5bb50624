# docs/cookbook/tokenizing.md: transform=tokenize
import pyarrow as pa

from torch_dataloader_utils import StructuredDataset

vocabulary = {"[UNK]": 0, "a": 1, "red": 2, "house": 3}


def tokenize(rows: pa.RecordBatch) -> pa.RecordBatch:
    tokens = [[vocabulary.get(word, 0) for word in text.split()] for text in rows["text"].to_pylist()]
    return pa.record_batch({"tokens": pa.array(tokens, pa.list_(pa.int64())), "label": rows["label"]})


loader, _ = StructuredDataset.create_dataloader("data/", transform=tokenize, lists="padded", batch_size=4)
batch = next(iter(loader))
