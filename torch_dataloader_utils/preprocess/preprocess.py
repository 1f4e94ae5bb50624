"""`Preprocess`: what becomes of each column, fitted on rows, and applied to others."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.options.transform import PLACE, DeclaredTransform, RowsRead
from torch_dataloader_utils.preprocess.digest import digest_of
from torch_dataloader_utils.preprocess.fit_state import ELSEWHERE, LEFT_OUT, FitState, StateParts
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.forms import counts_of_ids, in_form, is_one_row
from torch_dataloader_utils.preprocess.one_row import OneRow
from torch_dataloader_utils.preprocess.own import OwnTransform
from torch_dataloader_utils.preprocess.spec import (
    Entries,
    check_kinds,
    check_names,
    check_target,
    entries_of,
    named_in,
    outputs_of,
    read_in,
)
from torch_dataloader_utils.preprocess.target import SeenRows, TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    ERROR,
    HELD,
    Categorize,
    Cross,
    DateParts,
    IdTransform,
    Impute,
    Keep,
    QuantileTransform,
)
from torch_dataloader_utils.printing import listed, plural, shown
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.units import parse_bytes
from torch_dataloader_utils.values import flag, one_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.module import PreprocessModule
    from torch_dataloader_utils.preprocess.refinement import Accuracy
    from torch_dataloader_utils.preprocess.scan import FitScan
    from torch_dataloader_utils.preprocess.scans import Scans

_MEMORY = 2 << 30  # bytes


_LOG = logging.getLogger("torch_dataloader_utils")


@dataclass(frozen=True)
class _Fit:
    """What was fitted: the outputs in the order of the spec, on how many rows, and of which files for targets.

    Attributes:
        generation: how many updates it has had.
        parents: the digests that it had before these, the oldest first.
    """

    outputs: tuple[FittedOutput, ...]
    rows: int
    dtype: str
    seen: tuple[SeenRows, ...] = ()
    generation: int = 0
    parents: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        return digest_of(self.outputs, self.dtype)

    @property
    def mark(self) -> str:
        """By which ranks and scans know that they update the same fit."""
        return f"{self.digest} {self.generation} {self.rows}"

    @property
    def encodes_targets(self) -> bool:
        return any(each.output.target is not None for each in self.outputs)

    @property
    def for_training(self) -> _Fit:
        outputs = (replace(each, training=each.output.target is not None) for each in self.outputs)
        return _Fit(tuple(outputs), self.rows, self.dtype, self.seen)

    @cached_property
    def of_row(self) -> OneRow:
        return OneRow(self.outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Fit, (self.outputs, self.rows, self.dtype, self.seen, self.generation, self.parents)


class Preprocess(DeclaredTransform):
    """Transforms of columns: fitted once, then the same function of rows in training and at inference.

    Example:
        ```python
        prep = Preprocess({"age": [Impute("median"), Standardize()], "city": Categorize(), "label": Keep()})
        prep.fit("train/")
        loader = tdu.stream("train/", transform=prep, batch_size=4096, shuffle=True)
        ```

    Args:
        spec: by column, pattern or type: a transform, a list of transforms applied one after another, or a dict of
            these by output. A tuple of columns takes `Cross`. Outputs have the order of the spec.
        dtype: of computed numbers.
        others: "drop" for columns that the spec does not name: they are not even read; "keep" leaves them as they are.

    Raises:
        OptionError: an entry is none of these.
    """

    def __init__(
        self,
        spec: Mapping[Any, Any],
        *,
        dtype: Literal["float32", "float64"] = "float32",
        others: Literal["drop", "keep"] = "drop",
    ) -> None:
        self._dtype: str = one_of("float32", "float64")("dtype", dtype)
        self._others: str = one_of("drop", "keep")("others", others)
        self._entries: Entries = entries_of(spec)
        self._fit: _Fit | None = None
        self._state: FitState = FitState()

    # Fitting.

    def scan(
        self,
        schema: pa.Schema,
        *,
        update: bool | Literal["ids"] = False,
        memory: int | str = _MEMORY,
        quantiles: float | Literal["exact"] = 0.001,
    ) -> FitScan:
        """The first scan of rows of this schema, for a fit that another program runs, such as Spark or Ray.

        Each task counts some of the rows in a `part`, all parts are merged, and what they counted is learned:

        ```python
        scan = prep.scan(schema)
        while scan is not None:
            for part in parts_of(scan.part()):  # each: part.add(batch) for its batches; parts pickle
                scan.merge(part)
            last, scan = scan, scan.finish()  # None, or another scan: of `prep.scans(schema)` at most
        prep.learned(last)
        ```

        Args:
            schema: of the rows.
            update: as of `fit`.
            memory: bytes of values that each output counts in memory; more are spilled to a temporary folder.
            quantiles: as of `fit`.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: a transform does not work on a column's type.
            OptionError: an update needs more than what was counted.
            SavedPreprocessError: what was counted was saved, and its file is missing or damaged.
        """
        limit = parse_bytes(memory, "memory")
        return self._scan(schema, first=True, update=_update(update), memory=limit, quantiles=quantiles)

    def _scan(
        self, schema: pa.Schema, first: bool, *, update: Literal[True, "ids"] | None, memory: int, quantiles: Any
    ) -> FitScan:
        """The first scan; `first`: whether this is the process that knows the rows before an update."""
        from torch_dataloader_utils.preprocess.refinement import Accuracy

        accuracy = Accuracy.of(quantiles)
        if update is None:
            return self._new_scan(schema, memory, accuracy)
        from torch_dataloader_utils.preprocess.updating import update_scan

        return update_scan(
            self._fitted.outputs,
            self._state,
            schema,
            update=update,
            memory=memory,
            accuracy=accuracy,
            mark=self._fitted.mark,
            recalls=first,
        )

    def _new_scan(self, schema: pa.Schema, memory: int, accuracy: Accuracy) -> FitScan:
        from torch_dataloader_utils.preprocess.columns import kind_of, types_by_name, words_of
        from torch_dataloader_utils.preprocess.learning import Learning, known_types
        from torch_dataloader_utils.preprocess.scan import FitScan

        if not self._entries:
            raise OptionError(
                "this Preprocess was loaded: it holds what was fitted, but no spec. Make it again as "
                "Preprocess({...}), with its spec, and fit that."
            )
        columns = list(types_by_name(schema, named_in(self._entries)))
        found = types_by_name(schema, read_in(self._entries))
        words = {name: words_of(type_) for name, type_ in found.items()}
        learning = []
        for output in outputs_of(self._entries, columns, words, self._others):
            types = known_types(output, found)
            kinds = [kind_of(type_) for type_ in types]
            check_kinds(output, kinds[: len(output.columns)])
            check_target(output, kinds[len(output.columns) :])
            learning.append(Learning(output, types, memory, accuracy))
        return FitScan(learning)

    def learned(self, scan: FitScan) -> Self:
        """Take over what scans have learned, once `finish` of this last one has returned None; returns self.

        Raises:
            OptionError: it is not finished.
        """
        if scan.is_part or not all(output.done for output in scan.outputs):
            raise OptionError(
                "this scan is not finished: merge all parts in one that is none, call its finish(), and give the rows "
                "to the scan that it returns."
            )
        outputs = tuple(output.made(self._dtype) for output in scan.outputs)
        check_names([name for each in outputs for name in each.names])
        made = _Fit(outputs, scan.rows, self._dtype)
        if scan.updates:
            made = _grown(self._fitted, made, scan.updates)
        self._fit, self._state = made, FitState([output.counted for output in scan.outputs])
        return self

    def scans(self, source: Any, *, quantiles: float | Literal["exact"] = 0.001, **options: Any) -> Scans:
        """How often a fit reads the rows, at most, and why; reads no rows.

        Args:
            source: as of `fit`, or an Arrow schema.
            quantiles: as of `fit`.
            **options: as of `fit`.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: a transform does not work on a column's type.
        """
        import pyarrow as pa

        from torch_dataloader_utils.preprocess.refinement import Accuracy
        from torch_dataloader_utils.preprocess.scans import scans_of
        from torch_dataloader_utils.preprocess.sources import options_of_rows, rows_of

        known = isinstance(source, pa.Schema)
        schema = source if known else rows_of(source, options_of_rows(source, options), "scans").schema
        return scans_of([output.output for output in self.scan(schema).outputs], Accuracy.of(quantiles))

    def fit(
        self,
        source: Any,
        *,
        update: bool | Literal["ids"] = False,
        memory: int | str = _MEMORY,
        quantiles: float | Literal["exact"] = 0.001,
        show_progress: bool | Literal["all"] = False,
        **options: Any,
    ) -> Self:
        """Learn what the transforms need of the rows of a source; returns self.

        The result has the same bits for any files, row groups, threads, order of rows and number of processes.

        An update learns of further rows: numbers become those of a fit of all rows, bit for bit. No id moves: values
        that have reached `min_count` over all rows, and have no id yet, get the next ones, up to `max_size`. It works
        on a loaded Preprocess, too, and reads no row again, so what would need that is an error.

        Where torch.distributed is initialised, its processes share the rows of files and tables, and all learn of all
        of them: each must call this. Rows in memory are taken to be the same in all; with `ranks`, each has a part. A
        process that fits alone passes `num_ranks=1, rank=0`.

        Args:
            source: as of `stream`; or a loader or dataset, with its filters, subset and snapshot; or an Arrow table, or
                a pandas or polars DataFrame.
            update: True for an update by these rows, which were not fitted on before; "ids" to keep the learned numbers
                as they are: only vocabularies grow.
            memory: bytes of values that each output counts in memory; more are spilled to a temporary folder.
            quantiles: by which share of the rows the rank of a quantile may be off without another scan of its column;
                1: there is none. "exact": as many scans as it takes to find the exact ones, which `scans` limits.
            show_progress: whether to show a bar; "all": on all ranks.
            **options: keywords of `stream` that say which rows are read, such as `filters` or `subset`; `num_ranks`,
                `rank`, `ranks`: which processes share the rows; `timeout`: seconds to wait for the others.

        Raises:
            EmptyDatasetError: there are no rows.
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: a transform does not work on a column's type.
            WorkerError: another process failed; says why.
            PlanMismatchError: the processes have different specs or data, or one does not arrive in time.
            OptionError: this is not fitted, or an update needs more than what was counted.
            SavedPreprocessError: what was counted was saved, and its file is missing or damaged.
        """
        from torch_dataloader_utils.preprocess.fitting import fit

        first = partial(self._scan, update=_update(update), memory=parse_bytes(memory, "memory"), quantiles=quantiles)
        scan, read = fit(first, source, {**options, "show_progress": show_progress})
        self.learned(scan)
        if self._fitted.encodes_targets and not scan.updates:
            self._fit = replace(self._fitted, seen=SeenRows.of(read))
        return self

    # What was fitted.

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in order."""
        return [name for each in self._fitted.outputs for name in each.names]

    @property
    def inputs(self) -> list[str]:
        """The names of the columns that are read."""
        return list(dict.fromkeys(name for each in self._fitted.outputs for name in each.output.columns))

    @property
    def numeric(self) -> list[str]:
        """The outputs of computed numbers, all of one dtype: `stack={"dense": prep.numeric}`."""
        return [name for each in self._fitted.outputs for name in _numbers_of(each)]

    @property
    def categorical(self) -> list[str]:
        """The outputs of ids, for embeddings."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The number of ids of each output that holds ids: every id is below it."""
        return {name: size for each in self._fitted.outputs for name, size in each.sizes.items()}

    def parameters(self, output: str) -> dict[str, Any]:
        """The numbers that an output's transforms learned, by name; of several of one name, a list."""
        found: dict[str, list[Any]] = {}
        for fitted in self._of(output).fitted:
            for name, value in fitted.items():
                if name not in (*HELD, ERROR, "null"):
                    found.setdefault(name, []).append(value)
        return {name: values[0] if len(values) == 1 else values for name, values in found.items()}

    def quantile_errors(self) -> dict[str, float | None]:
        """How far the ranks of learned quantiles may be off, as a share of the rows, by output that learned some.

        0.0: they are those that `np.quantile` finds. None: not known, as it was not saved with them.
        """
        found: dict[str, float | None] = {}
        for each in self._fitted.outputs:
            for link, fitted in zip(each.output.chain, each.fitted, strict=True):
                if isinstance(link, QuantileTransform) and link.shares:
                    known, error = found.get(each.output.name, 0.0), fitted.get(ERROR)
                    found[each.output.name] = None if known is None or error is None else max(known, error)
        return found

    def vocabulary(self, output: str) -> list[Any]:
        """The values of an output of categories, in the order of their ids; None stands for null, if that is one.

        Raises:
            OptionError: it has none.
        """
        fitted = self._categories_of(output).fitted[-1]
        values = list(fitted["vocabulary"].values)
        if "null" in fitted:
            values.insert(fitted["null"], None)
        return values

    def counts(self, output: str) -> list[int]:
        """How often each value of a learned vocabulary was seen, in the order of ids, null left out.

        Raises:
            OptionError: it has none.
        """
        fitted = self._categories_of(output).fitted[-1]
        if "counts" not in fitted:
            raise OptionError(f"counts({output!r}): its values were given, not counted.")
        return [int(count) for count in fitted["counts"]]

    def class_counts(self, output: str) -> dict[Any, int]:
        """How many of the rows that were fitted on have each class, missing ones left out; in the order of classes.

        The weights of a loss that balances n rows of k classes are n / (k * count).

        Args:
            output: of `Keep(classes=True)`, or of categories that were learned.

        Raises:
            OptionError: its values were not counted.
        """
        each = self._of(output)
        fitted = each.fitted[-1]
        if "counts" not in fitted or not isinstance(each.last, (Categorize, Keep)):
            raise OptionError(
                f"class_counts({output!r}): its values were not counted, because it is made by {each.last!r}. Fit it "
                "with Keep(classes=True), which leaves them as they are and counts them, or Categorize()."
            )
        return dict(zip(fitted["vocabulary"].values, map(int, fitted["counts"]), strict=True))

    def inverse(self, output: str, ids: Sequence[int]) -> list[Any]:
        """The values of ids; None for 0 and unknown.

        Raises:
            OptionError: the output has no categories, or an id is none of them.
        """
        link = self._categories_of(output).categories
        assert link is not None
        first, values = 1 + link.unknown_ids, self.vocabulary(output)
        found: list[Any] = []
        for number in ids:
            place = index(number) if hasattr(number, "__index__") else -1
            if not 0 <= place < first + len(values):
                raise OptionError(
                    f"inverse({output!r}): {shown(number)} is not an id: expected 0 to {first + len(values) - 1}."
                )
            found.append(values[place - first] if place >= first else None)
        return found

    def _categories_of(self, output: str) -> FittedOutput:
        each = self._of(output)
        if not isinstance(each.last, Categorize):
            raise OptionError(f"output {output!r} has no vocabulary: it is made by {each.last!r}.")
        return each

    def _of(self, output: str) -> FittedOutput:
        named = {each.output.name: each for each in self._fitted.outputs}
        if output not in named:
            raise OptionError(f"there is no output {shown(output)}: expected one of {list(named)}.")
        return named[output]

    @property
    def _fitted(self) -> _Fit:
        if self._fit is None:
            raise OptionError("this Preprocess is not fitted: call its fit(...) first, or load a saved one.")
        return self._fit

    @property
    def digest(self) -> str:
        """A hash of all that decides what becomes of rows: of two with one digest, outputs are equal."""
        return self._fitted.digest

    @property
    def generation(self) -> int:
        """How many updates it has had since it was fitted."""
        return self._fitted.generation

    @property
    def parents(self) -> list[str]:
        """The digests that it had before its updates, the oldest first."""
        return list(self._fitted.parents)

    # Applying.

    def __call__(self, rows: Any) -> Any:
        """What becomes of rows, in the form in which they are given.

        Args:
            rows: a pyarrow RecordBatch or Table, a pandas or polars DataFrame, a dict of arrays or lists by column, or
                a dict of values: one row.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them. Kept ones may be.
            UnsupportedTypeError: a column holds what it did not when it was fitted.
        """
        fit = self._fitted
        # A dict that may be both is one row.
        return in_form(fit.outputs, rows) if is_one_row(fit.outputs, rows) is False else fit.of_row(rows)

    def for_training(self) -> FrozenPreprocess:
        """What becomes of the rows that this was fitted on: targets are encoded without the rows of a row's own fold.

        Give it to the loader of the training rows, and this Preprocess itself to those of all others, and to a single
        row at inference: one row is an error here.

        Raises:
            OptionError: this is not fitted, or encodes no target.
        """
        fit = self._fitted
        if not fit.encodes_targets:
            raise OptionError("for_training(): no TargetEncode is among the transforms, so give the Preprocess itself.")
        return FrozenPreprocess(fit.for_training)

    def to_module(self, outputs: Sequence[str] | None = None) -> PreprocessModule:
        """This as a `torch.nn.Module`: a dict of tensors by column to one by output, with the bits of `prep(rows)`.

        `torch.export` and ONNX take it, with the same bits. It is given what `arrays` returns. What `prep(rows)` raises
        an error for, such as an unknown value of `Categorize(unknown="error")`, becomes the id -2**63, which no
        embedding has. Text is told apart by 64-bit hashes.

        Example:
            ```python
            module = prep.to_module()
            module({name: torch.from_numpy(array) for name, array in prep.arrays(rows).items()})
            torch.export.export(module, (module.example(),), dynamic_shapes=module.dynamic_shapes)
            module.to_onnx("prep.onnx")
            onnxruntime.InferenceSession("prep.onnx").run(None, prep.arrays(rows))
            ```

        Args:
            outputs: some of `outputs`; None: all but kept columns, of which a module makes nothing.

        Raises:
            OptionError: an output is none of these, or columns' names collide.
            UnsupportedTypeError: an output cannot be made by a module, such as one of lists; it names the remedy.
        """
        from torch_dataloader_utils.preprocess.module import PreprocessModule
        from torch_dataloader_utils.preprocess.module_inputs import check_exported, chosen_of

        fitted = chosen_of(self._fitted.outputs, outputs)
        check_exported(fitted)
        names = [name for each in fitted for name in each.names]
        return PreprocessModule(fitted, names if outputs is None else list(outputs))

    def arrays(self, rows: Any, outputs: Sequence[str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """What the module of `to_module`, or the ONNX model made of it, is given for rows: a dict of arrays [rows].

        Numbers are float64, NaN where they are missing. Whole numbers of which ids are made are int64, with bools
        `<column>_missing`; so are times, in microseconds since 1970, of which parts are taken. All else is int64
        hashes.

        Args:
            rows: in one of the forms of `__call__`.
            outputs: as given to `to_module`.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: a column holds what it did not when it was fitted, or a number that is no int64.
        """
        from torch_dataloader_utils.preprocess.module_inputs import arrays_of, chosen_of

        return arrays_of(chosen_of(self._fitted.outputs, outputs), rows)

    def frozen(self) -> FrozenPreprocess:
        """What a loader uses: a later `fit` does not change it.

        Raises:
            OptionError: this is not fitted.
        """
        return FrozenPreprocess(self._fitted)

    # Files.

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        state: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what was fitted: a JSON file, and beside it a Parquet file for each large vocabulary.

        What an update goes on from is written, too: exact sums in the JSON, rare values and the cells of quantiles in
        one more Parquet file, which only an update reads.

        Args:
            path: of the JSON file; a local path or a URL.
            state: False leaves out what an update goes on from.
            storage_options: of its store.
        """
        from torch_dataloader_utils.preprocess.saving import save

        fit = self._fitted
        fitted_on = {"rows": fit.rows, **({"files": [each.to_json() for each in fit.seen]} if fit.seen else {})}
        grown = {"generation": fit.generation, "parents": list(fit.parents)}
        facts = {"digest": fit.digest, **grown, "options": {"dtype": fit.dtype}, "fitted_on": fitted_on}
        parts = self._state.parts() if flag("state", state) else StateParts([], absent=LEFT_OUT)
        if parts.absent == ELSEWHERE:
            _LOG.warning(
                "save(%s): this rank has a part of what an update goes on from, so the file is one to apply, not to "
                "update. Let the first rank of the fit save it, or say save(..., state=False).",
                printable(os.fspath(path)),
            )
        save(os.fspath(path), storage_options or {}, fit.outputs, facts, parts)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Self:
        """What `save` wrote; nothing in it is executed.

        Args:
            path: of the JSON file; a local path or a URL.
            storage_options: of its store.

        Raises:
            SavedPreprocessError: the file is missing, damaged, edited, newer, or none that `save` wrote.
        """
        from torch_dataloader_utils.preprocess.loading import Loading

        loading = Loading(os.fspath(path), storage_options or {})
        outputs, content = loading.read()
        made = cls.__new__(cls)
        made._entries, made._dtype, made._others = {}, content["options"]["dtype"], "drop"
        fitted_on = content["fitted_on"]
        seen = tuple(map(SeenRows.from_json, fitted_on.get("files", ())))
        grown = content.get("generation", 0), tuple(content.get("parents", ()))
        made._fit = _Fit(tuple(outputs), fitted_on["rows"], made._dtype, seen, *grown)
        made._state = loading.state(outputs, content)
        return made

    def __repr__(self) -> str:
        if self._fit is None:
            return f"<Preprocess of {plural(len(self._entries), 'key')}, not fitted>"
        outputs = plural(len(self.outputs), "output")
        grown = f", generation {self.generation}" if self.generation else ""
        return f"<Preprocess of {outputs}, fitted on {plural(self._fit.rows, 'row')}{grown}, digest {self.digest}>"


@dataclass(frozen=True)
class FrozenPreprocess(DeclaredTransform):
    """A fitted `Preprocess` as the transform of a loader; picklable."""

    _fit: _Fit

    @property
    def reads(self) -> list[str]:
        """The columns that it needs."""
        return list(dict.fromkeys(name for each in self._fit.outputs for name in each.reads))

    @property
    def mark(self) -> str:
        """Its digest."""
        return self._fit.digest

    @property
    def grew_from(self) -> Sequence[str]:
        """The digests before its updates."""
        return self._fit.parents

    def meet(self, rows: Callable[[], RowsRead], name: str) -> None:
        """Warn if targets are encoded for rows that were fitted on, as if they were others.

        Raises:
            OptionError: rows were in other folds when they were fitted on.
        """
        fit = self._fit
        if not fit.seen:  # no target is encoded: the names of all files need not be hashed
            return
        met = rows()
        if PLACE in self.reads and any(seen.moved(met) for seen in fit.seen):
            raise OptionError(
                f"{name}: when the Preprocess was fitted, it was given these files by other names, so their rows were "
                "in other folds. Give the path that fit() was given, or fit it with TargetEncode(by=[...])."
            )
        plain = [each.output.name for each in fit.outputs if each.output.target is not None and not each.training]
        if plain and any(seen.among(met) for seen in fit.seen):
            _LOG.warning(
                "%s: the Preprocess was fitted on these rows, so %s of a row is made of its own target, and a model "
                "learns to trust it. Train with transform=prep.for_training().",
                name, listed(plain, show=repr),
            )  # fmt: skip

    def prepare(self) -> None:
        """Build the tables of vocabularies."""
        for each in self._fit.outputs:
            if each.categories is not None or isinstance(each.last, TargetEncode):
                each.fitted[-1]["vocabulary"].table.build()

    @property
    def encoded(self) -> list[str]:
        """The columns of which ids are made."""
        names: dict[bool, list[str]] = {True: [], False: []}  # by whether ids are made of the column itself
        for each in self._fit.outputs:
            of_ids = isinstance(each.last, (IdTransform, TargetEncode)) and len(each.output.chain) == 1
            names[of_ids] += each.output.columns
            names[False] += each.reads[len(each.output.columns) :]
        return [name for name in dict.fromkeys(names[True]) if name not in names[False]]

    @property
    def made(self) -> list[str]:
        """The outputs that are computed: all but columns kept, or filled only, and those of an `OwnTransform`."""
        return [name for each in self._fit.outputs if each.computed for name in each.names]

    def __call__(self, rows: Any) -> Any:
        """What becomes of rows: a record batch, or another form of `Preprocess.__call__` but for one row.

        Raises:
            UnsupportedTypeError: it is one row.
        """
        import pyarrow as pa

        if is_one_row(self._fit.outputs, rows):
            raise UnsupportedTypeError(
                "one row was given to for_training(), which takes the rows that the Preprocess was fitted on, as a "
                "table, a DataFrame or a dict of columns. At inference, give it to the Preprocess itself: prep(row)."
            )
        made = in_form(self._fit.outputs, rows)
        for each in self._fit.outputs:
            if each.categories is not None and isinstance(made, pa.RecordBatch):  # as a loader's reader gives them
                recorder().count_ids(each.output.name, *counts_of_ids(each.categories, made.column(each.output.name)))
        return made


def _update(given: Any) -> Literal[True, "ids"] | None:
    """How a fit updates the one before; None if it does not."""
    return one_of(False, True, "ids")("update", given) or None


def _grown(before: _Fit, made: _Fit, updates: str) -> _Fit:
    """What an update has made of a fit."""
    if not updates.startswith(f"{before.mark} "):
        raise OptionError(
            "this scan updates what this Preprocess was before another fit: make it again, by scan(schema, update=...)."
        )
    parents = before.parents if made.digest == before.digest else (*before.parents, before.digest)
    return replace(
        made,
        rows=before.rows + made.rows,
        dtype=before.dtype,
        seen=before.seen,
        generation=before.generation + 1,
        parents=parents,
    )


def _numbers_of(each: FittedOutput) -> list[str]:
    """The names of an output's columns of computed numbers."""
    names, last = each.names, each.last
    if isinstance(last, TargetEncode):
        return names
    if isinstance(last, (IdTransform, Keep, Cross, OwnTransform)):
        return names[1:]  # an indicator
    if isinstance(last, DateParts):
        return names if last.cyclic else []
    only_filled = not each.output.numeric
    return names[1:] if only_filled and any(isinstance(link, Impute) for link in each.output.chain) else names
