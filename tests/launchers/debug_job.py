"""A loop under `accelerate.debug_launcher`, which leaves RANK=0 in each process: `debug_job.py <data> <folder>`."""

import json
import logging
import os
import sys
from pathlib import Path

from accelerate import Accelerator, debug_launcher

from torch_dataloader_utils import StructuredDataset

DATA, OUT = sys.argv[1:]


def main():
    accelerator = Accelerator(cpu=True)
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("torch_dataloader_utils").addHandler(handler)
    loader = accelerator.prepare(StructuredDataset.create_dataloader(DATA, batch_size=40, even="pad")[0])
    ids = [row for batch in loader for row in batch["id"][batch["valid"]].tolist()]
    found = {"ids": ids, "said": said, "RANK": os.environ["RANK"]}
    Path(OUT, f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.wait_for_everyone()
    os._exit(0)


if __name__ == "__main__":
    debug_launcher(main, num_processes=2)
