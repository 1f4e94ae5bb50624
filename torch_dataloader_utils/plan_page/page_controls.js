"use strict";
// The form of options: each control is a label, an input and a line of help; changes are passed on as (key, value).
const Controls = (() => {
  const MIB = 2 ** 20;
  const BYTES = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096].map((size) => size * MIB);
  const isRotate = (values) => values.sharding === "rotate";
  const isStrided = (values) => values.sharding === "strided";
  const isMixed = (values) => values.shuffle !== false && values.shuffle !== "splits";
  const byBytes = (values) => isMixed(values) && values.window_rows === null;
  const opens = (values) => isMixed(values) && values.shuffle !== "all";
  const SHARDING = {
    interleave: "Rank r gets every R-th split.",
    contiguous: "Rank r gets the r-th of R equal parts, cut to the row.",
    rotate: "Contiguous shards that move on by one rank in each epoch.",
    strided: "Ranks take rows in turn.",
    auto: "Interleave if there are enough splits, otherwise contiguous.",
  };
  const UNIT = {
    row: "Single rows.", batch: "Runs of one batch.", split_batch: "A part each of a batch that all ranks share.",
  };
  const EVEN = {
    none: "Every row once; ranks may have different steps.",
    drop: "Equal, full steps; less than one global batch is left out.",
    pad: "Equal steps; some rows are repeated under a mask.",
    sync: "All ranks stop after the smallest rank's last batch.",
  };
  const SHUFFLE = {
    false: "File order.",
    nearby: "Rows in windows; splits stay in file order.",
    splits: "Each epoch has the splits in another order.",
    true: "Splits, then rows in windows.",
    all: "Rows of all splits at once.",
  };
  const LAST = {
    partial: "A short last batch is delivered.", drop: "A short last batch is dropped.",
    pad: "Filled up with the rank's own first rows.", wrap: "Filled up with rows of the next ranks.",
  };

  // kind: number (slider and box), powers (slider over powers of two), list, ticks (radio buttons), tick (check box).
  const FIELDS = [
    { key: "num_ranks", label: "Ranks", kind: "number", slider: 64 },
    { key: "num_workers", label: "I/O workers per rank", kind: "number", slider: 16, help: () => "None, 0 and 1 make the same plan." },
    { key: "epoch", label: "Epoch", kind: "number", slider: 31 },
    { key: "batch_size", label: "Batch size", kind: "powers" },
    { key: "sharding", label: "Sharding", kind: "list", help: (v) => SHARDING[v.sharding] },
    { key: "total_shards", label: "Total shards", kind: "optional", when: isRotate, help: () => "One per rank and epoch; a multiple of the ranks." },
    { key: "full_rotation", label: "Full rotation", kind: "tick", when: (v) => isRotate(v) && v.total_shards !== null, help: () => "Every rank meets every shard." },
    { key: "stick_to_shard", label: "Stick to the shard", kind: "tick", when: (v) => isRotate(v) && v.total_shards === null, help: () => "No rotation." },
    { key: "unit", label: "In turn", kind: "list", when: isStrided, help: (v) => UNIT[v.unit] },
    { key: "even", label: "Even", kind: "ticks", when: (v) => v.steps_per_epoch === null, help: (v) => EVEN[v.even] },
    { key: "last_batch", label: "Last batch", kind: "list", when: (v) => v.even === "none" && v.steps_per_epoch === null, help: (v) => LAST[v.last_batch] },
    { key: "shuffle", label: "Shuffle", kind: "ticks", help: (v) => SHUFFLE[v.shuffle] },
    { key: "window_bytes", label: "Shuffle window", kind: "bytes", when: byBytes, help: () => "Decoded bytes per rank, shared by its workers." },
    { key: "window_rows", label: "Rows per window", kind: "optional", more: true, when: isMixed, help: () => "Instead of bytes." },
    { key: "open_splits", label: "Splits per window", kind: "optional", more: true, when: opens, help: () => "None: those that fit, or 4." },
    { key: "steps_per_epoch", label: "Steps per epoch", kind: "optional", more: true, help: () => "Exactly this many on each rank: rows repeat, or are left out." },
  ];

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  const shown = (word) => ({ true: "True", false: "False" })[word] ?? String(word);

  function slider(field, attributes, toValue, change) {
    const input = element("input", { type: "range", step: 1, ...attributes });
    input.setAttribute("aria-label", `${field.label} (slider)`);
    input.addEventListener("input", () => change(field.key, toValue(Number(input.value))));
    return input;
  }

  function box(field, change) {
    const input = element("input", { type: "number", id: `field-${field.key}`, min: State.LEAST[field.key], step: 1, inputMode: "numeric" });
    if (State.MOST[field.key]) input.max = State.MOST[field.key];
    const commit = () => {
      const empty = input.value.trim() === "";
      if (empty && State.OPTIONAL.includes(field.key)) change(field.key, null);
      else if (!empty && Number.isFinite(input.valueAsNumber)) change(field.key, State.bounded(field.key, input.valueAsNumber));
    };
    input.addEventListener("change", commit);
    return input;
  }

  const BUILD = {
    number(field, change) {
      const least = State.LEAST[field.key];
      const range = slider(field, { min: least, max: field.slider }, (value) => value, change);
      const exact = box(field, change);
      if (field.key === "num_workers") exact.placeholder = "None";
      const show = (values) => {
        const value = values[field.key];
        exact.value = value ?? "";
        range.max = Math.max(field.slider, value ?? 0);
        range.value = value ?? least;
        range.setAttribute("aria-valuetext", shown(value ?? "None"));
      };
      return { inputs: [exact, range], show };
    },
    powers(field, change) {
      const range = slider(field, { min: 0, max: 16 }, (power) => 2 ** power, change);
      const exact = box(field, change);
      const show = (values) => {
        exact.value = values[field.key];
        range.value = Math.round(Math.log2(values[field.key]));
        range.setAttribute("aria-valuetext", Words.plural(values[field.key], "row"));
      };
      return { inputs: [exact, range], show };
    },
    optional(field, change) {
      const exact = box(field, change);
      exact.placeholder = "None";
      return { inputs: [exact], show: (values) => (exact.value = values[field.key] ?? "") };
    },
    list(field, change) {
      const options = State.WORDS[field.key].map((word) => new Option(shown(word), String(word)));
      const select = element("select", { id: `field-${field.key}` }, ...options);
      select.addEventListener("change", () => change(field.key, State.WORDS[field.key][select.selectedIndex]));
      return { inputs: [select], show: (values) => (select.value = String(values[field.key])) };
    },
    bytes(field, change) {
      const select = element("select", { id: `field-${field.key}` });
      select.addEventListener("change", () => change(field.key, Number(select.value)));
      const show = (values) => {
        const sizes = [...new Set([...BYTES, values[field.key]])].sort((one, other) => one - other);
        select.replaceChildren(...sizes.map((size) => new Option(Words.bytes(size), size)));
        select.value = values[field.key];
      };
      return { inputs: [select], show };
    },
    tick(field, change) {
      const input = element("input", { type: "checkbox", id: `field-${field.key}` });
      input.addEventListener("change", () => change(field.key, input.checked));
      return { inputs: [input], first: true, show: (values) => (input.checked = values[field.key]) };
    },
  };

  // Radio buttons that look like one switch; also used outside the form.
  function choice(fieldset, key, words, change) {
    const inputs = words.map((word) => element("input", { type: "radio", name: key, value: String(word) }));
    inputs.forEach((input, i) => {
      input.addEventListener("change", () => change(key, words[i]));
      fieldset.append(element("label", {}, input, shown(words[i])));
    });
    return (values) => inputs.forEach((input, i) => (input.checked = words[i] === values[key]));
  }

  function ticks(field, change) {
    const set = element("fieldset", { className: "choice", id: `field-${field.key}` });
    set.append(element("legend", { className: "unseen" }, field.label));
    return { inputs: [set], show: choice(set, field.key, State.WORDS[field.key], change) };
  }

  function row(field, change) {
    const { inputs, show, first } = field.kind === "ticks" ? ticks(field, change) : BUILD[field.kind](field, change);
    const label = element("label", { htmlFor: `field-${field.key}`, textContent: field.label });
    const help = element("p", { className: "help", id: `help-${field.key}` });
    inputs.forEach((input) => input.setAttribute("aria-describedby", help.id));
    const parts = first ? [...inputs, label] : [label, ...inputs];
    const line = element("div", { className: `field ${field.kind}` }, ...parts, help);
    const update = (values) => {
      line.hidden = field.when ? !field.when(values) : false;
      help.textContent = field.help ? field.help(values) : "";
      help.hidden = !help.textContent;
      show(values);
    };
    return { line, inputs, update };
  }

  // Builds the form; returns functions that show values, and that switch all controls of the plan off.
  function build(container, change) {
    const rows = FIELDS.map((field) => row(field, change));
    const rare = FIELDS.map((field) => field.more ?? false);
    const lines = (more) => rows.filter((_, i) => rare[i] === more).map((one) => one.line);
    const more = element("details", { id: "more" }, element("summary", { textContent: "More options" }), ...lines(true));
    container.append(...lines(false), more);
    const freeze = (keys) => rows.forEach((one, i) => {
      if (keys.includes(FIELDS[i].key)) return;
      one.line.querySelectorAll("input, select").forEach((input) => (input.disabled = true));
    });
    const show = (values) => {
      rows.forEach((one) => one.update(values));
      more.open ||= FIELDS.some((field) => field.more && values[field.key] !== null);
    };
    return { show, freeze };
  }

  return { build, choice, element };
})();
