// Graphs: what belongs to a box or an arrow stays when it is pointed at, all else steps back.

const MARKS = ".box[data-id], .arrow[data-from]"; // what a legend shows has no such name
const LABELS = ".label[data-from]"; // of arrows: they stand over all boxes

function ends(arrow) {
  return [arrow.dataset.from, arrow.dataset.to];
}

function haveSameEnds(a, b) {
  return String(ends(a)) === String(ends(b));
}

// Give what is pointed at; a label stands for its arrow.
function markOf(svg, target) {
  const label = target.closest(LABELS);
  return label ? all(svg, ".arrow[data-from]").find((arrow) => haveSameEnds(arrow, label)) : target.closest(MARKS);
}

// Give what stays when a mark is traced: an arrow and its two ends; a box, its arrows and their other ends.
function traced(svg, mark) {
  const isArrow = mark.classList.contains("arrow");
  const arrows = all(svg, ".arrow[data-from]").filter((each) => (isArrow ? each === mark : ends(each).includes(mark.dataset.id)));
  const labels = all(svg, LABELS).filter((label) => arrows.some((arrow) => haveSameEnds(arrow, label)));
  const ids = new Set(arrows.flatMap(ends));
  const boxes = all(svg, ".box[data-id]").filter((each) => each === mark || ids.has(each.dataset.id));
  return new Set([...arrows, ...labels, ...boxes]);
}

function startTracing(svg) {
  const marks = all(svg, MARKS);
  const parts = [...marks, ...all(svg, LABELS)];
  let held = null;
  const show = (mark) => {
    const kept = mark ? traced(svg, mark) : new Set();
    svg.classList.toggle("tracing", kept.size > 0);
    parts.forEach((each) => each.classList.toggle("kept", kept.has(each)));
  };
  const hold = (mark) => {
    held = mark === held ? null : mark;
    for (const each of marks) {
      each.classList.toggle("held", each === held);
      each.setAttribute("aria-pressed", String(each === held));
    }
    show(held);
  };

  for (const line of all(svg, ".arrow[data-from] .line")) {
    const hit = line.cloneNode(false); // a thin line is hard to point at
    hit.removeAttribute("marker-end");
    hit.setAttribute("class", "hit");
    line.before(hit);
  }
  rove(svg, MARKS, "button");
  svg.addEventListener("pointerover", (event) => held || show(markOf(svg, event.target)));
  svg.addEventListener("pointerleave", () => held || show(null));
  svg.addEventListener("focusin", (event) => held || (event.target.matches(":focus-visible") && show(markOf(svg, event.target))));
  svg.addEventListener("focusout", () => held || show(null));
  svg.addEventListener("click", (event) => hold(markOf(svg, event.target)));
  svg.addEventListener("keydown", (event) => {
    if (!markOf(svg, event.target) || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    hold(markOf(svg, event.target));
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hold(null));
  hold(null);
  return "Point at a box or an arrow to trace it; click to hold, Escape to let go.";
}
