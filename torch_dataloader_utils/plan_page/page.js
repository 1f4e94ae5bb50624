"use strict";
// The page: options in, drawings out.
const PlanPage = (() => {
  const data = PageData.read(document.getElementById("data").textContent);
  const initial = { ...data.options, colour: "file" };
  const page = { data, initial, choices: initial, values: initial, plan: null, drawn: 0, milliseconds: 0, error: "" };
  const get = (id) => document.getElementById(id);
  const THEMES = ["", "light", "dark"];
  let controls = null, showColour = null, scheduled = 0;

  // What the user chose is kept as it is, so that an option that yields to another comes back with it.
  function choose(choices) {
    page.choices = data.fixed ? { ...initial, colour: choices.colour, epoch: withPlan(choices.epoch) } : choices;
    page.values = State.settled(page.choices);
  }

  // The nearest epoch that Python planned.
  function withPlan(epoch) {
    const epochs = Object.keys(data.fixed.plans).map(Number);
    return Math.min(Math.max(epoch, Math.min(...epochs)), Math.max(...epochs));
  }

  // The options of the planner: all but what only the page shows.
  function planned(values) {
    const { colour, ...options } = values;
    return options;
  }

  function planOf(values) {
    if (data.fixed) return data.fixed.plans[values.epoch] ?? null;
    return Planner.plan(data, planned(values));
  }

  const splitsShown = (values) => data.splits[PlannerOptions.permutes(values) ? "shuffled" : "unshuffled"];

  function countSplits(values) {
    const counts = data.files.map(() => 0);
    for (const file of splitsShown(values).file) counts[file]++;
    data.splits_of_file = counts;
  }

  function totalRows(values) {
    const { rows } = splitsShown(values);
    return data.exact && rows.every((count) => count !== null) ? rows.reduce((sum, count) => sum + count, 0) : null;
  }

  function showHeading(values) {
    const total = totalRows(values);
    const rows = total === null ? "rows known only after reading" : Words.plural(total, data.unit);
    get("title").textContent = document.title;
    const sums = [Words.plural(data.files.length, "file"), rows, Words.plural(splitsShown(values).file.length, "split"), `seed ${data.seed}`];
    get("subtitle").textContent = sums.join(" · ");
  }

  function showNotice() {
    const notes = [];
    if (data.fixed) notes.push(`This page shows the plan that Python computed, and cannot replan it: ${data.fixed.reason}.`);
    if (!data.exact) {
      notes.push(`${Words.capitalised(data.unknown.why)} Boxes show the rows that files hold, or bytes where these are not recorded.`);
    }
    get("notice").hidden = !notes.length;
    get("notice").textContent = notes.join(" ");
  }

  function showVerdict({ kind, title, text }) {
    get("verdict").className = `verdict ${kind}`;
    get("verdict-title").textContent = title;
    get("verdict-text").textContent = text;
  }

  function problem(values, { message }) {
    const reason = Planner.supported(planned(values), data);
    if (reason) return { kind: "warn", title: "This page cannot show the plan", text: `${Words.capitalised(reason)}.` };
    return { kind: "bad", title: "These options do not fit together", text: message };
  }

  function showCall(values) {
    get("python").textContent = Call.asPython(data, values, data.call.defaults);
    get("yaml").textContent = Call.asYaml(data, values, data.call.defaults);
  }

  function showPlan(plan, values) {
    showVerdict(Words.verdict(values, plan, totalRows(values), data));
    const workers = `${Words.plural(Math.max(1, values.num_workers ?? 1), "I/O worker")} each`;
    const lanes = plan.mix ? "whose workers share the reading of every dataset" : workers;
    get("map-hint").textContent = `Epoch ${values.epoch}, ${Words.plural(values.num_ranks, "rank")}, ${lanes}.`;
    MapInput.shown(PlanMap.draw(get("map-base"), data, plan, values));
    Steps.draw(get("steps"), plan, values, data.unit);
    Shuffle.draw(data, plan, values);
    Rotation.draw(get("rotation"), data, { ...values, mix: plan.mix }, (epoch) => {
      try {
        return epoch === values.epoch ? plan : planOf({ ...values, epoch });
      } catch {
        return null;
      }
    });
  }

  function draw() {
    const begin = performance.now();
    const { values } = page;
    controls.show(values);
    showColour(values);
    countSplits(values);
    showHeading(values);
    showCall(values);
    try {
      page.plan = planOf(values);
      page.error = "";
      if (page.plan) showPlan(page.plan, values);
    } catch (error) {
      page.plan = null;
      page.error = error.message;
      showVerdict(problem(values, error));
    }
    document.querySelectorAll("main > section:not(.verdict)").forEach((section) => section.classList.toggle("stale", !page.plan));
    page.milliseconds = performance.now() - begin;
    page.drawn += 1;
  }

  function schedule() {
    if (!scheduled) scheduled = requestAnimationFrame(() => { scheduled = 0; draw(); });
  }

  function change(key, value) {
    choose(State.chosen(page.choices, key, value));
    remember();
    schedule();
  }

  function remember() {
    const fragment = State.toFragment(page.choices, initial);
    const url = location.href.replace(/#.*$/, "");
    try {
      history.replaceState(null, "", fragment ? `${url}#${fragment}` : url);
    } catch {
      location.hash = fragment; // in frames without an address of their own
    }
  }

  function recall() {
    choose(State.fromFragment(location.hash, initial));
    schedule();
  }

  function showTheme() {
    const theme = document.documentElement.dataset.theme ?? "";
    get("theme").textContent = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme];
  }

  function turnTheme() {
    const now = document.documentElement.dataset.theme ?? "";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    showTheme();
    draw();
  }

  function listen() {
    get("controls").addEventListener("submit", (event) => event.preventDefault());
    get("controls").addEventListener("reset", (event) => {
      event.preventDefault();
      choose({ ...initial, colour: page.values.colour });
      remember();
      schedule();
    });
    get("theme").addEventListener("click", turnTheme);
    get("share").addEventListener("click", (event) => Call.copy(location.href, event.currentTarget));
    document.querySelectorAll("[data-copy]").forEach((button) =>
      button.addEventListener("click", () => Call.copy(get(button.dataset.copy).textContent, button)));
    get("rotation").addEventListener("keydown", Rotation.onKey);
    addEventListener("hashchange", recall);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);
    MapInput.listen();
    let width = get("map").clientWidth;
    new ResizeObserver(() => {
      if (get("map").clientWidth === width) return;
      width = get("map").clientWidth;
      schedule();
    }).observe(get("map"));
  }

  function start() {
    controls = Controls.build(get("fields"), change);
    showColour = Controls.choice(get("colour"), "colour", State.WORDS.colour, change);
    if (data.fixed) controls.freeze(["epoch"]);
    showTheme();
    showNotice();
    listen();
    choose(State.fromFragment(location.hash, initial));
    draw();
  }

  start();
  return page;
})();
