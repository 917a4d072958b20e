// A timeline that can be looked at closer: by buttons, keys, the wheel, and by drawing it along.

const CLOSEST = 2000; // it is drawn at most this many times as long

// The seconds that are shown, and where they are drawn.
class View {
  constructor(area) {
    [this.left, this.right, this.last] = ["left", "right", "end"].map((name) => Number(area.dataset[name]));
    [this.from, this.to] = [0, this.last];
    this.unit = { name: area.dataset.unit ?? "s", seconds: Number(area.dataset.unitSeconds ?? 1) };
  }
  get span() {
    return this.to - this.from;
  }
  get zoomed() {
    return this.span < this.last;
  }
  place(second) {
    return this.left + ((second - this.from) / this.span) * (this.right - this.left);
  }
  second(x) {
    return this.from + ((x - this.left) / (this.right - this.left)) * this.span;
  }
  show(start, span) {
    const length = between(this.last / CLOSEST, span, this.last);
    this.from = between(0, start, this.last - length);
    this.to = length === this.last ? this.last : this.from + length;
  }
}

function startTimeline(svg, tools) {
  const area = svg.querySelector(".zoomed");
  const view = new View(area);
  if (!(view.right > view.left && view.last > 0)) return "";
  const bars = all(area, ".bar").map((bar) => readBar(bar, view));
  const range = made("output", "");
  measure(bars.flatMap((each) => each.texts));

  const show = (start, span) => {
    view.show(start, span);
    bars.forEach((bar) => drawBar(bar, view));
    drawTicks(area, view);
    svg.classList.toggle("zoomed-in", view.zoomed);
    range.textContent = rangeText(view);
  };
  const zoom = (factor, at = (view.from + view.to) / 2) => show(at - (at - view.from) / factor, view.span / factor);
  const pan = (part) => show(view.from + part * view.span, view.span);
  const whole = () => show(0, view.last);

  tools.append(
    button("−", "Zoom out", () => zoom(1 / 2)),
    button("+", "Zoom in", () => zoom(2)),
    button("‹", "Earlier", () => pan(-0.5)),
    button("›", "Later", () => pan(0.5)),
    button("Whole", "Whole timeline", whole),
    range,
  );
  zoomByKeys(svg.closest(".scroll"), { zoom, pan, whole });
  zoomByWheel(svg, view, zoom);
  panByDragging(svg, view, show);
  rove(svg, ".zoomed .bar", "img");
  svg.addEventListener("focusin", (event) => {
    const bar = bars.find((each) => each.bar === event.target);
    if (bar && (bar.end <= view.from || bar.start >= view.to)) show((bar.start + bar.end - view.span) / 2, view.span);
  });
  printWhole(view, show);
  whole();
  return "Drag to move, Ctrl and the wheel to zoom. Keys: + − 0, and Shift with an arrow.";
}

function rangeText({ from, to, span, unit }) {
  const step = roundStep(span / unit.seconds / 200);
  return `${rounded(from / unit.seconds, step)} to ${rounded(to / unit.seconds, step)} ${unit.name}`;
}

function zoomByKeys(root, { zoom, pan, whole }) {
  const keys = { "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(1 / 2), 0: whole };
  const shifted = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25) };
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const action = keys[event.key] ?? (event.shiftKey ? shifted[event.key] : undefined);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Give a place on the screen in units of the picture.
function across(svg, clientX) {
  const { left, width } = svg.getBoundingClientRect();
  return ((clientX - left) * svg.viewBox.baseVal.width) / width;
}

function zoomByWheel(svg, view, zoom) {
  const turned = (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(2 ** (-event.deltaY / 200), between(view.from, view.second(across(svg, event.clientX)), view.to));
  };
  svg.addEventListener("wheel", turned, { passive: false });
}

// A finger scrolls the page and the picture, as everywhere; the mouse takes the timeline along.
function panByDragging(svg, view, show) {
  let down = null;
  svg.addEventListener("pointerdown", (event) => {
    const taken = event.button === 0 && event.pointerType !== "touch" && view.zoomed;
    down = taken ? { x: across(svg, event.clientX), from: view.from } : null;
  });
  svg.addEventListener("pointermove", (event) => {
    const moved = down ? across(svg, event.clientX) - down.x : 0;
    if (Math.abs(moved) < 3 && !svg.hasPointerCapture(event.pointerId)) return;
    svg.setPointerCapture(event.pointerId);
    show(down.from - (moved / (view.right - view.left)) * view.span, view.span);
  });
  ["pointerup", "pointercancel"].forEach((name) => svg.addEventListener(name, () => (down = null)));
}

function printWhole(view, show) {
  let before = null;
  addEventListener("beforeprint", () => {
    before = [view.from, view.span];
    show(0, view.last);
  });
  addEventListener("afterprint", () => before && show(...before));
}
