// Graphs: what belongs to a box or an arrow stays when it is pointed at, all else steps back.

function ends(arrow) {
  return [arrow.dataset.from, arrow.dataset.to];
}

// Give what stays when a mark is traced: an arrow and its two ends; a box, its arrows and their other ends.
function traced(svg, mark) {
  const isArrow = mark.classList.contains("arrow");
  const arrows = isArrow ? [mark] : all(svg, ".arrow").filter((each) => ends(each).includes(mark.dataset.id));
  const ids = new Set(arrows.flatMap(ends));
  const boxes = all(svg, ".box").filter((each) => each === mark || ids.has(each.dataset.id));
  return new Set([...arrows, ...boxes]);
}

function startTracing(svg) {
  const marks = all(svg, ".box, .arrow");
  let held = null;
  const show = (mark) => {
    const kept = mark ? traced(svg, mark) : new Set();
    svg.classList.toggle("tracing", kept.size > 0);
    marks.forEach((each) => each.classList.toggle("kept", kept.has(each)));
  };
  const hold = (mark) => {
    held = mark === held ? null : mark;
    for (const each of marks) {
      each.classList.toggle("held", each === held);
      each.setAttribute("aria-pressed", String(each === held));
    }
    show(held);
  };
  const markOf = (event) => event.target.closest(".box, .arrow");

  for (const line of all(svg, ".arrow .line")) {
    const hit = line.cloneNode(false); // a thin line is hard to point at
    hit.removeAttribute("marker-end");
    hit.setAttribute("class", "hit");
    line.before(hit);
  }
  rove(svg, ".box, .arrow", "button");
  svg.addEventListener("pointerover", (event) => held || show(markOf(event)));
  svg.addEventListener("pointerleave", () => held || show(null));
  svg.addEventListener("focusin", (event) => held || (event.target.matches(":focus-visible") && show(markOf(event))));
  svg.addEventListener("focusout", () => held || show(null));
  svg.addEventListener("click", (event) => hold(markOf(event)));
  svg.addEventListener("keydown", (event) => {
    if (!markOf(event) || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    hold(markOf(event));
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hold(null));
  hold(null);
  return "Point at a box or an arrow to trace it; click to hold, Escape to let go.";
}
