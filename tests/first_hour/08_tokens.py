# docs/cookbook/tokenizing.md: Transform(f, format="numpy")
import pyarrow as pa

from torch_dataloader_utils import Transform, stream

vocabulary = {"[UNK]": 0, "a": 1, "red": 2, "house": 3}


def tokenize(rows):
    tokens = [[vocabulary.get(word, 0) for word in text.split()] for text in rows["text"]]
    return {"tokens": tokens, "label": rows["label"]}


schema = pa.schema({"tokens": pa.list_(pa.int64()), "label": pa.int64()})
loader = stream("data/", transform=Transform(tokenize, schema=schema, format="numpy"), lists="padded", batch_size=4)
batch = next(iter(loader))
