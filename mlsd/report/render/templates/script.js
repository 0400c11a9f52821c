"use strict";
for (const table of document.querySelectorAll("table.interactive")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const words = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => {
    const cell = row.cells[i];
    if (cell.dataset.s !== undefined) return Number(cell.dataset.s);
    return cell.textContent === "-" ? null : cell.textContent.toLowerCase();
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = [...rows].sort((a, b) => {
      const [x, y] = [key(a, i), key(b, i)];
      if (x === null || y === null) return (x === null) - (y === null); // what was not measured stays last
      return down ? compare(y, x) : compare(x, y);
    });
    body.append(...order);
  }));
  const filter = document.querySelector(`[data-filter="${table.id}"]`);
  const count = document.querySelector(`[data-count="${table.id}"]`);
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !wanted.every((word) => words[i].includes(word));
      shown += !row.hidden;
    });
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  });
}
for (const button of document.querySelectorAll("button.csv")) {
  button.addEventListener("click", () => {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    // A spreadsheet runs what begins like a formula.
    const words = (text) => (/^[=+@\t]|^-./.test(text) ? `'${text}` : text);
    const value = (cell) => quoted(cell.dataset.s ?? words(cell.textContent.trim()));
    const rows = [...document.getElementById(button.dataset.table).rows].filter((row) => !row.hidden);
    const lines = rows.map((row) => [...row.cells].map(value).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    link.download = `${button.dataset.table.replace(/-t$/, "")}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "copied";
  });
}
const unfold = () => {
  const place = location.hash && document.getElementById(location.hash.slice(1));
  const folded = place && place.closest("details");
  if (folded) folded.open = true;
};
addEventListener("hashchange", unfold);
unfold();
document.getElementById("unfold").addEventListener("click", () => {
  const all = [...document.querySelectorAll("details.section")];
  const open = all.some((section) => !section.open);
  all.forEach((section) => { section.open = open; });
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details.section").forEach((section) => { section.open = true; });
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
