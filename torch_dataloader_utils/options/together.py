"""Checks that options of different groups do not exclude each other."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from torch_dataloader_utils.errors import CountsRequiredError, Example, OptionError, Remedy, leave_out, use
from torch_dataloader_utils.options.groups import check_last_batch
from torch_dataloader_utils.options.sharding import Strided

if TYPE_CHECKING:
    from torch_dataloader_utils.options.keywords import Options

STEPS = Example("n", 2)
_PART = Example("f", 0.5)
_JOIN = "torch's Join around the loop"
_REACHABLE = "define it at the top level of a module, or leave worker_mode at 'threads'."


def check_together(options: Options) -> None:
    """Check that options of different groups do not exclude each other.

    Raises:
        OptionError: two options exclude each other.
    """
    check_sent(options)
    shard, batch = options.shard, options.batch
    if shard.count_rows and options.read.transform_rows == "any":
        raise OptionError(
            "count_rows=True with Transform(rows='any'): counting does not run transform, which can change the number "
            "of rows.",
            remedies=uncounted_remedies(options, "count_rows"),
        )
    check_following(options)
    check_class_weights(options)
    check_packing(options)
    check_buckets(options)
    if options.uncounted:
        _refuse_counted(options)
    buckets = options.bucket.batch_tokens
    if buckets is not None and batch.last_batch != "partial":
        raise OptionError(
            f"last_batch={batch.last_batch!r} with batch_tokens={buckets.short()}: batches differ in their rows, so "
            "none is short.",
            remedies=[leave_out("last_batch")],
        )
    check_device(options)
    check_last_batch(batch.last_batch, shard.even)
    if batch.last_batch != "partial" and shard.steps_per_epoch is not None:
        raise OptionError(
            f"last_batch={batch.last_batch!r} with steps_per_epoch={shard.steps_per_epoch}: its batches are all full.",
            remedies=[leave_out("last_batch")],
        )


def check_following(options: Options) -> None:
    """Check that no option makes a pass leave out rows, which no later pass would read, or repeat them as real ones.

    Raises:
        OptionError: with `follow=True`, an option does.
    """
    if not options.follow.follows:
        return
    shard, last_batch = options.shard, options.batch.last_batch
    cut = options.pack.wraps and shard.even != "pad" and last_batch not in ("pad", "wrap")
    pad = "Use even='pad': all ranks get equal steps, and what it repeats is masked"
    level = f"Leave even out, and use {_JOIN}" if options.uncounted else pad
    for text, given, remedy in (
        (f"steps_per_epoch={shard.steps_per_epoch}", shard.steps_per_epoch is not None, level),
        (f"even={shard.even!r}", shard.even in ("drop", "sync"), level),
        (f"last_batch={last_batch!r}", last_batch == "drop", "Use last_batch='partial' or 'pad'"),
        ("Pack(method='wrap')", cut, "Add even='pad' or last_batch='pad', which deliver the last tokens of a pass"),
        (f"sharding={shard.sharding!r}", shard.total_shards is not None, "Leave it out"),
    ):
        if given:
            raise OptionError(
                f"follow=True with {text}: a pass reads each appended row once, and no later pass reads what it "
                f"leaves out. {remedy}."
            )


def check_class_weights(options: Options) -> None:
    """Check that rows, whose number differs by epoch with `class_weights`, are not counted once.

    Raises:
        OptionError: they are to be counted once for all epochs.
    """
    if options.subset.class_weights is None:
        return
    if options.shard.count_rows:
        raise OptionError(
            "count_rows=True with class_weights: the copies of rows are drawn anew in each epoch, so one count does "
            "not hold for all.",
            remedies=uncounted_remedies(options, "count_rows"),
        )


def check_packing(options: Options) -> None:
    """Check that no option contradicts packing: batches are tensors.

    Raises:
        OptionError: two options exclude each other.
    """
    if options.pack.pack is None:
        return
    batch, convert = options.batch, options.convert
    for name, value, only in (
        ("output_format", batch.output_format, ("torch", "numpy")),
        ("lists", convert.lists, ("ragged",)),
        ("stack", convert.stack, (None,)),
        ("jagged", convert.jagged, (None,)),
    ):
        if value not in only:
            raise OptionError(f"{name}={value!r} with pack: batches are tensors.", remedies=[leave_out(name)])
    if options.pack.wraps:
        _check_wrapping(options)


def _check_wrapping(options: Options) -> None:
    """Check that no option contradicts documents that follow one another, of which only tokens are counted."""
    shard, limit = options.shard, options.subset.limit
    single = shard.sharding == Strided()
    blocks, part = use(sharding=Strided("batch")), use(without=["limit"], fraction=_PART, count_rows=True)
    for text, given, why, remedy in (
        ("sharding='strided'", single, "ranks would take single tokens in turn", blocks),
        (
            f"canonical_ranks={shard.canonical_ranks}",
            shard.canonical_ranks is not None,
            "steps are of tokens",
            leave_out("canonical_ranks"),
        ),
        (f"limit={limit}", limit is not None, "limit counts rows", part),
    ):
        if given:
            raise OptionError(f"{text} with Pack(method='wrap'): {why}.", remedies=[remedy, *_whole(options)])


def _whole(options: Options) -> list[Remedy]:
    """The remedy to pack whole documents, if no option needs the number of sequences."""
    shard, pack = options.shard, options.pack.pack
    counted = shard.even in ("drop", "pad") or shard.canonical_ranks is not None or shard.count_rows
    if pack is None or counted or options.batch.last_batch == "wrap":
        return []
    return [use(pack=pack.replace(method="best_fit"))]


def check_buckets(options: Options) -> None:
    """Check that no option contradicts `batch_tokens`.

    Raises:
        OptionError: two options exclude each other.
    """
    buckets = options.bucket.batch_tokens
    if buckets is None:
        return
    text, batch = f"batch_tokens={buckets.short()}", options.batch
    if options.pack.pack is not None:
        raise OptionError(
            f"{text} with pack: packed batches have batch_size sequences of one length.",
            remedies=[leave_out("batch_tokens"), leave_out("pack")],
        )
    if batch.output_format not in ("torch", "numpy"):
        raise OptionError(
            f"output_format={batch.output_format!r} with {text}: only tensors and arrays are padded.",
            remedies=[leave_out("output_format"), use(output_format="numpy")],
        )
    if options.shard.unit == "split_batch":
        raise OptionError(
            f"sharding={options.shard.sharding!r} with {text}: batch_tokens is the budget of a batch of one rank.",
            remedies=[use(sharding=Strided("batch")), leave_out("sharding")],
        )


def check_device(options: Options) -> None:
    """Check that batches can be put on the device.

    Raises:
        OptionError: they are no tensors, or were to be put elsewhere.
    """
    device, output = options.worker.device, options.batch.output_format
    if device is None:
        return
    if output != "torch":
        raise OptionError(
            f"device={device!r} with output_format={output!r}: only tensors are put on a device.",
            remedies=[leave_out("output_format"), leave_out("device")],
        )
    if options.worker.pin_memory and device != "cpu":
        raise OptionError(
            f"device={device!r} with pin_memory=True: batches on a GPU cannot be page-locked, and what they are copied "
            "from already is.",
            remedies=[leave_out("pin_memory")],
        )


def _refuse_counted(options: Options) -> None:
    """Refuse the options that need counts which `count_rows` does not give."""
    shard = options.shard
    counted = {
        f"even={shard.even!r}": shard.even in ("drop", "pad"),
        "last_batch='wrap'": options.batch.last_batch == "wrap",
        f"canonical_ranks={shard.canonical_ranks}": shard.canonical_ranks is not None,
    }
    for text in (text for text, needed in counted.items() if needed):
        message = f"{text} needs counts before reading, but {options.uncounted}"
        if options.follow.follows:  # refuses both
            raise CountsRequiredError(f"{message}: leave it out, and use {_JOIN}.")
        raise CountsRequiredError(f"{message}.", remedies=uncounted_remedies(options))


def uncounted_remedies(options: Options, *left_out: str) -> list[Remedy]:
    """What gives all ranks equal steps although no rows are counted, without the options that then have no place.

    Args:
        options: of the loader.
        left_out: options that are left out in any case.
    """
    shard, needing = options.shard, []
    if options.batch.last_batch != "partial":
        needing.append("last_batch")
    if shard.canonical_ranks is not None:
        needing.append("canonical_ranks")
    first = [*left_out, *(["count_rows"] if shard.count_rows and "count_rows" not in left_out else []), *needing]
    steps = [*first, *(["even"] if shard.levels else [])]
    sync = [*first, *(["steps_per_epoch"] if shard.steps_per_epoch is not None else [])]
    ways = [
        use("exactly n steps", without=steps, steps_per_epoch=STEPS),
        use("all ranks stop with the first", without=sync, even="sync"),
    ]
    if shard.steps_per_epoch is not None:
        return [leave_out(*steps)]
    return ways if shard.even != "sync" else [leave_out(*first)]


def check_sent(options: Options) -> None:
    """Check that worker processes can receive the functions that run in them.

    Raises:
        OptionError: they could not import the function `transform`.
    """
    transform, worker = options.read.transform, options.worker
    context = worker.multiprocessing_context
    method = context if context is None or isinstance(context, str) else context.get_start_method()
    if transform is None or worker.worker_mode != "processes" or not worker.num_workers or method == "fork":
        return
    try:
        data = bytes(ForkingPickler.dumps(transform))
    except RuntimeError:  # locks and similar objects can only be passed to a process while it starts
        return
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"transform={transform!r} cannot be sent to worker processes ({error}): {_REACHABLE}"
        ) from error
    if b"__main__" in data and not os.path.exists(getattr(sys.modules["__main__"], "__file__", "")):
        raise OptionError(
            f"transform={transform!r} was defined interactively, so worker processes cannot import it: {_REACHABLE}"
        )
