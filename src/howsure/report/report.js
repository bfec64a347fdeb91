"use strict";
// Shows the view of a noise level and an output, sorts tables, switches the theme.
(() => {
  const find = (id) => document.getElementById(id);
  const level = find("level"), output = find("output"), theme = find("theme");
  const views = [...document.querySelectorAll(".view")];
  const start = views.find((view) => !view.hidden).id.split("-")[1];

  function show() {
    const key = `view-${level ? level.value : start}-${output ? output.value : 0}`;
    for (const view of views) view.hidden = view.id !== key;
    if (!level) return;
    const name = document.querySelectorAll(".level")[level.value].value;
    level.setAttribute("aria-valuetext", name);
    find("level-name").textContent = name;
  }

  const collator = new Intl.Collator(undefined, { numeric: true });

  function compare(one, two) {
    const [a, b] = [one, two].map((cell) => cell.dataset.value);
    if (a === undefined || b === undefined) return collator.compare(one.textContent, two.textContent);
    return Number(a) === Number(b) ? 0 : Number(a) < Number(b) ? -1 : 1;
  }

  function sortBy(head) {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const column = head.cellIndex, sign = down ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => sign * compare(a.cells[column], b.cells[column])));
  }

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  for (const control of [level, output]) if (control) control.addEventListener("input", show);
  if (find("controls")) find("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll(".sortable th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  // Browsers may bring back an old position of the slider; the page shows what it says.
  nameTheme();
  show();
})();
