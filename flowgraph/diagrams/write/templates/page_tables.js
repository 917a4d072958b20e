// Tables that are sorted by a column, and whose rows are linked with what stands for them in a picture.

function compare(a, b, sign) {
  const [x, y] = [a.dataset.sort, b.dataset.sort];
  if (x !== undefined && y !== undefined) return sign * (Number(x) - Number(y));
  if (x !== y) return x === undefined ? 1 : -1; // what has no number comes last, either way
  return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

function startSorting(table) {
  const body = table.tBodies[0];
  const ranked = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const next = { null: "ascending", ascending: "descending", descending: null };
  if (ranked.length < 2) return;
  heads.forEach((head, column) => {
    const sort = () => {
      const way = next[head.getAttribute("aria-sort")];
      const sign = way === "descending" ? -1 : 1;
      const order = (a, b) => compare(a.cells[column], b.cells[column], sign);
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      if (way) head.setAttribute("aria-sort", way);
      body.append(...(way ? [...ranked].sort(order) : ranked));
    };
    head.replaceChildren(made("button", head.textContent, { type: "button", onclick: sort }));
  });
}

// Link the parts of a picture that are a row of its table each, with that row.
function linkRows(section) {
  const rows = new Map(all(section, "tbody tr").map((row) => [row.dataset.row, row]));
  const parts = all(section, "svg :is(.dot, .strip, .message)[data-row]").filter((part) => rows.has(part.dataset.row));
  parts.forEach((part) => link(part, rows.get(part.dataset.row)));
  if (parts.length) rove(section.querySelector("tbody"), "tr", "");
}

function link(part, row) {
  const mark = (on) => [part, row].forEach((each) => each.classList.toggle("marked", on));
  for (const each of [part, row]) {
    ["pointerenter", "focusin"].forEach((name) => each.addEventListener(name, () => mark(true)));
    ["pointerleave", "focusout"].forEach((name) => each.addEventListener(name, () => mark(false)));
  }
  part.addEventListener("click", () => {
    row.closest("details")?.setAttribute("open", "");
    row.scrollIntoView({ block: "nearest" });
  });
}
