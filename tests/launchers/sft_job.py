"""An SFTTrainer of several processes: `sft_job.py <what> <data> <folder for what was found>`."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from torch_dataloader_utils import Pack, stream
from torch_dataloader_utils.integrations.trl import SFTMixin

WHAT, DATA, OUT = sys.argv[1:]
RANK = int(os.environ.get("RANK", 0))
LENGTH, BATCH, STEPS = 24, 2, 7


def note(name, value):
    with Path(OUT, f"{name}-{RANK}").open("a") as file:
        file.write(json.dumps(value) + "\n")


class OurTrainer(SFTMixin, SFTTrainer):
    """Notes the documents on which it trains, and those on which it evaluates."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        note("trained" if self.model.training else "evaluated", documents(inputs))
        return super().compute_loss(model, inputs, *args, **kwargs)


def documents(batch):
    """The tokens of a batch of sequences, without padding."""
    return batch["input_ids"][batch["document_ids"] >= 0].tolist()


class Kill(TrainerCallback):
    """Kills rank 1 in the second epoch."""

    def on_step_end(self, args, state, control, **_):
        if WHAT == "killed" and state.global_step == STEPS + 3 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def tokenizer():
    words = {"<unk>": 0, "<eos>": 1, "<pad>": 2}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<unk>")), eos_token="<eos>", pad_token="<pad>"
    )


def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            head_dim=8,
            eos_token_id=1,
            pad_token_id=2,
        )
    )


def loader(**options):
    pack = Pack(LENGTH, pad={"labels": -100})
    return stream(DATA, **{"pack": pack, "batch_size": BATCH, "shuffle": True, "steps_per_epoch": STEPS, **options})


def settings(**changes):
    given = {"num_train_epochs": 2, "save_steps": 2, "logging_steps": 1, "report_to": [], "use_cpu": True}
    return SFTConfig(f"{OUT}/checkpoints", bf16=False, disable_tqdm=True, **{**given, **changes})


if __name__ == "__main__":
    wrapped = loader(pack=Pack(LENGTH, method="wrap"), shuffle=False, steps_per_epoch=None, even="pad")
    trainer = OurTrainer(
        model(),
        settings(),
        train_dataset=loader(),
        eval_dataset={"val": wrapped},
        processing_class=tokenizer(),
        callbacks=[Kill()],
    )
    trainer.train(resume_from_checkpoint=WHAT == "resumed")
    note("counted", [entry["num_tokens"] for entry in trainer.state.log_history if "num_tokens" in entry])
    note("metrics", trainer.evaluate())
    trainer.evaluate(wrapped)
    os._exit(0)
