# docs/resume.md: load_state_dict(
import torch

from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300, shuffle=True)
batches = iter(loader)
before = [next(batches)["id"] for _ in range(5)]
torch.save({"loader": loader.state_dict()}, "checkpoint.pt")
expected = [batch["id"] for batch in batches]

loader = stream("data/", batch_size=300, shuffle=True)
loader.load_state_dict(torch.load("checkpoint.pt")["loader"])
after = [batch["id"] for batch in loader]
