"use strict";
// The call that creates the loader with the shown options, as Python and as YAML. Python wrote the values that the page
// cannot change, because JavaScript's numbers and keys of objects are not exact.
const Call = (() => {
  const MODULE = "torch_dataloader_utils";
  const LINE = 88;

  // Bytes as people write them: "64MiB".
  function sized(name, value) {
    if (!name.endsWith("_bytes")) return value;
    const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => value >= size && value % size === 0);
    return unit ? `${value / unit[1]}${unit[0]}` : value;
  }

  // An option that the page can change: a number, a word, true, false or null.
  function python(value) {
    if (value === null) return "None";
    if (typeof value === "boolean") return value ? "True" : "False";
    return JSON.stringify(value);
  }

  const yaml = (value) => (typeof value === "string" && /^[a-z]+$/.test(value) ? value : JSON.stringify(value));

  // Options that are fields of the value of another: its class and their names, the first of which Python leaves out.
  const FIELDS = {
    sharding: { rotate: ["Rotate", "total_shards", "stick_to_shard", "full_rotation"], strided: ["Strided", "unit"] },
    shuffle: Object.fromEntries([true, "all", "nearby"].map((word) => [word, ["Shuffle", "scope", "window_bytes", "window_rows", "open_splits"]])),
  };
  const DEFAULTS = [null, false, true, "row", 128 * 2 ** 20];

  function texts(name, values) {
    const [kind, ...names] = FIELDS[name]?.[values[name]] ?? [];
    const all = { ...values, scope: values.shuffle };
    const given = names.filter((field) => field !== undefined && (!DEFAULTS.includes(all[field]) || (all[field] === true && field !== "scope")));
    const text = (write) => (field) => write(sized(field, all[field]));
    if (!given.some((field) => field !== "scope")) return { python: text(python)(name), yaml: text(yaml)(name) };
    const fields = given.map((field) => (field === names[0] ? "" : `${field}=`) + text(python)(field));
    const entries = given.map((field) => `${field}: ${text(yaml)(field)}`);
    const imports = [kind];
    return { python: `${kind}(${fields.join(", ")})`, yaml: `{kind: ${kind.toLowerCase()}, ${entries.join(", ")}}`, imports };
  }

  // The options of the call: those given that the page does not change, and those whose shown value is no default.
  function options(data, values, defaults) {
    const given = { ...data.call.options };
    for (const [name, value] of data.fixed ? [] : Object.entries(values)) {
      if (!(name in defaults)) continue;
      const shown = texts(name, values);
      if (data.call.options[name] && shown.python === texts(name, data.options).python) continue; // as it was given
      delete given[name];
      const same = (value === defaults[name] && !shown.imports) || (name === "num_workers" && (value ?? 1) < 2 && !data.call.options[name]);
      if (!same) given[name] = shown;
    }
    return Object.entries(given).map(([name, entry]) => ({ name, ...entry }));
  }

  // Comments above the call.
  function notes(data, values) {
    const launch = `${values.num_ranks} ranks: torchrun --nproc-per-node=${values.num_ranks} train.py`;
    return [!data.call.explicit_ranks && values.num_ranks > 1 && launch, data.call.note].filter(Boolean).map((note) => `# ${note}`);
  }

  function pythonLine({ name, python, code, hidden }) {
    if (hidden) return `${name}=${name},  # ${hidden}`;
    if (code !== undefined) return `${name}=${code},  # as in your code`;
    return `${name}=${python},`;
  }

  // What is read: a path, or the value of its kind, as lines of Python.
  function pythonSource({ python, kind, fields }) {
    const first = `${python},`;
    if (kind === undefined) return [first];
    const shown = [first, ...fields.map(pythonLine)];
    const short = `${kind}(${shown.join(" ").replace(/,$/, "")}),`;
    const fits = short.length <= LINE - 4 && !short.includes("#");
    return fits ? [short] : [`${kind}(`, ...shown.map((one) => `    ${one}`), "),"];
  }

  function asPython(data, values, defaults) {
    const ranks = data.call.explicit_ranks ? [`num_ranks=${values.num_ranks},`, "rank=rank,"] : [];
    const name = data.call.function;
    const given = options(data, values, defaults);
    const { kind, fields = [] } = data.call.target;
    const shown = [...pythonSource(data.call.target), ...ranks, ...given.map(pythonLine)];
    const start = `loader = ${name}(`;
    const short = start + shown.join(" ").replace(/,$/, "") + ")";
    const fits = short.length <= LINE && !short.includes("#");
    const classes = [...fields, ...given].flatMap((one) => one.imports ?? []);
    const names = new Set([name, ...classes, ...(data.call.target.imports ?? []), ...(kind === undefined ? [] : [kind])]);
    const head = [`from ${MODULE} import ${[...names].sort().join(", ")}`, "", ...notes(data, values)];
    return [...head, ...(fits ? [short] : [start, ...shown.map((one) => `    ${one}`), ")"])].join("\n");
  }

  function yamlLine({ name, yaml, code, hidden }) {
    if (hidden) return `# ${name}: ${hidden}`;
    return code === undefined ? `${name}: ${yaml}` : `# ${name}: set ${code} in your code`;
  }

  // What is read: a path, or a dict of its kind and fields, as lines of YAML.
  function yamlSource({ name, yaml, kind, first, fields }) {
    const entry = (key) => (yaml === undefined ? `# ${key}: set in your code` : `${key}: ${yaml}`);
    if (kind === undefined) return [entry(name)];
    const lines = [`kind: ${kind.toLowerCase()}`, entry(first), ...fields.map(yamlLine)];
    return [`${name}:`, ...lines.map((line) => `  ${line}`)];
  }

  function asYaml(data, values, defaults) {
    const source = yamlSource(data.call.target);
    const explicit = data.call.explicit_ranks ? [`num_ranks: ${values.num_ranks}`, "# rank: this process's rank"] : [];
    const lines = [`_target_: ${MODULE}.${data.call.function}`, ...source, ...explicit, ...options(data, values, defaults).map(yamlLine)];
    return [...notes(data, values), ...lines].join("\n");
  }

  async function copy(text, button) {
    const before = button.firstChild.textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = copyByCommand(text);
    }
    button.firstChild.textContent = done ? "Copied" : "Copy failed";
    document.getElementById("spoken").textContent = button.firstChild.textContent;
    setTimeout(() => (button.firstChild.textContent = before), 1600);
  }

  // For pages opened from a file, where browsers may refuse the clipboard.
  function copyByCommand(text) {
    const area = Controls.element("textarea", { value: text, className: "unseen" });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }

  return { asPython, asYaml, copy };
})();
