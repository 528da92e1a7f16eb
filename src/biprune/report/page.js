const read = (id) => JSON.parse(document.getElementById(id).textContent);
const charts = read("charts");
const themes = read("themes");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
const views = {};
let chosen = null; // the reader's choice of theme
let latest = 0; // the newest drawing; older ones stop
let drawing = Promise.resolve();

// The specs have colours for white; the dark theme swaps each for a lighter one.
const forTheme = (spec, name) =>
  name === "light"
    ? spec
    : JSON.parse(JSON.stringify(spec).replace(/#[0-9a-f]{6}/g, (c) => themes.swaps[c] ?? c));

const state = (view) =>
  view?.getState({ signals: (name) => name === "chosen", data: (name) => name === "shown_store" });

function redraw() {
  const mine = ++latest;
  const name = chosen ?? (prefersDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = name;
  delete document.documentElement.dataset.drawn;
  button.textContent = name === "dark" ? "light" : "dark";
  drawing = drawing.then(() => draw(mine, name)); // two at once would draw into one box
}

async function draw(mine, name) {
  for (const [id, { spec, entry }] of Object.entries(charts)) {
    if (mine !== latest) return;
    const box = document.getElementById(id);
    const columns = Math.max(1, Math.floor(box.clientWidth / entry));
    const theme = themes[name];
    const config = { ...theme, background: "transparent", legend: { ...theme.legend, columns } };
    const kept = state(views[id]?.view);
    views[id]?.finalize();
    views[id] = await vegaEmbed(box, forTheme(spec, name), {
      config,
      renderer: "svg",
      tooltip: { theme: name },
      actions: { export: true, source: false, compiled: false, editor: false },
    });
    if (kept) await views[id].view.setState(kept).runAsync();
  }
  document.documentElement.dataset.drawn = name;
}

button.addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  redraw();
});
prefersDark.addEventListener("change", redraw);
for (const width of [480, 860]) {
  matchMedia(`(max-width: ${width}px)`).addEventListener("change", redraw);
}
redraw();
