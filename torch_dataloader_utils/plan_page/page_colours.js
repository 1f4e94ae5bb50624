"use strict";
// Colours for light and dark pages: a few distinct ones, or a scale if there are more things than distinct colours.
const Colours = (() => {
  const DISTINCT = [
    ["#0f766e", "#2dd4bf"], ["#1d4ed8", "#60a5fa"], ["#b45309", "#fbbf24"], ["#9d174d", "#f472b6"],
    ["#6d28d9", "#a78bfa"], ["#4d7c0f", "#a3e635"], ["#0e7490", "#67d8ef"], ["#57534e", "#d6d3d1"],
  ];
  // Ends before red, which marks steps that other ranks do not have.
  const SCALE = [
    ["#0f766e", "#2dd4bf"], ["#0369a1", "#38bdf8"], ["#1d4ed8", "#60a5fa"], ["#6d28d9", "#a78bfa"],
    ["#a21caf", "#e879f9"], ["#9d174d", "#f472b6"],
  ];
  const BANDS = 64; // colours of a scale: more cannot be distinguished

  const choice = () => document.documentElement.dataset.theme;
  const dark = () => (choice() ? choice() === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

  function channels(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function hex(numbers) {
    return "#" + numbers.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("");
  }

  function onScale(place, theme) {
    const at = place * (SCALE.length - 1);
    const from = Math.min(Math.floor(at), SCALE.length - 2);
    const [before, after] = [SCALE[from][theme], SCALE[from + 1][theme]].map(channels);
    return hex(before.map((value, i) => value + (after[i] - value) * (at - from)));
  }

  // The colour of each of `count` things in an order.
  function palette(count) {
    const theme = dark() ? 1 : 0;
    if (count <= DISTINCT.length) return (i) => DISTINCT[i][theme];
    const bands = Math.min(count, BANDS);
    const scale = Array.from({ length: bands }, (_, band) => onScale(band / (bands - 1), theme));
    return (i) => scale[Math.min(bands - 1, Math.floor((i * bands) / count))];
  }

  // The value of a custom property of the style sheet, as a colour that a canvas takes.
  function named(name) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  }

  const named_all = (...names) => Object.fromEntries(names.map((name) => [name, named(`--${name}`)]));

  return { dark, palette, named: named_all };
})();
