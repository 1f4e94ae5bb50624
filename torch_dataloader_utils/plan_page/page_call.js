"use strict";
// The call that creates the loader with the shown options, as Python and as YAML.
const Call = (() => {
  const MODULE = "torch_dataloader_utils";
  const PLAIN = /^(\.{0,2}\/|[A-Za-z_])[\w./-]*$/;
  const RESERVED = /^(true|false|null|yes|no|on|off|y|n)$/i;
  const LINE = 88;

  // Bytes as people write them: "64MiB".
  function sized(name, value) {
    if (!name.endsWith("_bytes") || typeof value !== "number") return value;
    const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => value >= size && value % size === 0);
    return unit ? `${value / unit[1]}${unit[0]}` : value;
  }

  function python(value) {
    if (value === null) return "None";
    if (value === true || value === false) return value ? "True" : "False";
    if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
    if (typeof value === "object") return `{${Object.entries(value).map(([key, inner]) => `${python(key)}: ${python(inner)}`).join(", ")}}`;
    return typeof value === "string" ? JSON.stringify(value) : String(value);
  }

  function yaml(value) {
    if (typeof value === "string" && PLAIN.test(value) && !RESERVED.test(value)) return value;
    return JSON.stringify(value);
  }

  // The options of the call: those given that the page does not change, and those whose shown value is no default.
  function options(data, values, defaults) {
    const given = { ...data.call.options };
    for (const [name, value] of Object.entries(values)) {
      if (!(name in defaults)) continue;
      if (data.fixed && given[name]) continue;
      delete given[name];
      const same = value === defaults[name] || (name === "num_workers" && (value ?? 1) < 2 && !data.call.options[name]);
      if (!same) given[name] = { value };
    }
    return Object.entries(given).map(([name, entry]) => ({ name, ...entry, value: sized(name, entry.value) }));
  }

  function ranks(data, values) {
    if (data.call.explicit_ranks) return { lines: [`num_ranks=${values.num_ranks}`, "rank=rank"], note: "" };
    return { lines: [], note: values.num_ranks > 1 ? `# ${values.num_ranks} ranks: torchrun --nproc-per-node=${values.num_ranks} train.py` : "" };
  }

  function target(data) {
    const { name, value, code } = data.call.target;
    return { name, text: value === undefined ? code : python(value), value };
  }

  const UNSHOWN = "not shown here: credentials, or too long";

  function pythonLine({ name, value, code, hidden }) {
    if (hidden) return `${name}=${name},  # ${UNSHOWN}`;
    if (code !== undefined) return `${name}=${code},  # as in your code`;
    return `${name}=${python(value)},`;
  }

  function asPython(data, values, defaults) {
    const { lines, note } = ranks(data, values);
    const name = data.call.function;
    const shown = [`${target(data).text},`, ...lines.map((one) => `${one},`), ...options(data, values, defaults).map(pythonLine)];
    const start = `loader, dataset = ${name}(`;
    const short = start + shown.join(" ").replace(/,$/, "") + ")";
    const fits = short.length <= LINE && !short.includes("#");
    const table = data.call.table ? "# and the table's options, such as catalog_config, as in your code\n" : "";
    const head = `from ${MODULE} import ${name.split(".")[0]}\n\n${note ? `${note}\n` : ""}${table}`;
    return head + (fits ? short : [start, ...shown.map((one) => `    ${one}`), ")"].join("\n"));
  }

  function yamlLine({ name, value, code, hidden }) {
    if (hidden) return `# ${name}: ${UNSHOWN}`;
    return code === undefined ? `${name}: ${yaml(value)}` : `# ${name}: set ${code} in your code`;
  }

  function asYaml(data, values, defaults) {
    const { name, value } = target(data);
    const { note } = ranks(data, values);
    const first = value === undefined ? `# ${name}: set them in your code` : `${name}: ${yaml(value)}`;
    const explicit = data.call.explicit_ranks ? [`num_ranks: ${values.num_ranks}`, "# rank: this process's rank"] : [];
    const lines = [`_target_: ${MODULE}.${data.call.function}`, first, ...explicit, ...options(data, values, defaults).map(yamlLine)];
    return [...(note ? [note] : []), ...lines].join("\n");
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
