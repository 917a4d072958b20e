// The ticks of a timeline: as they were drawn while all of it is shown, else at round seconds of what is.

const TICK_GAP = 110; // between two ticks, about, in units of the picture

function drawTicks(area, view) {
  all(area, ".tick.made").forEach((tick) => tick.remove());
  const drawn = all(area, ".tick");
  drawn.forEach((tick) => setShown(tick, !view.zoomed));
  if (view.zoomed && drawn.length) drawn[0].before(...roundTicks(drawn[0], view));
  for (const mark of all(area, "[data-at]:not(.tick)")) {
    const at = Number(mark.dataset.at);
    setShown(mark, view.from <= at && at <= view.to);
    move(mark, view.place(at));
  }
}

// Make ticks like one that was drawn.
function roundTicks(drawn, view) {
  const step = roundStep(((view.span / view.unit.seconds) * TICK_GAP) / (view.right - view.left));
  const stepSeconds = step * view.unit.seconds;
  const first = Math.ceil(view.from / stepSeconds);
  return Array.from({ length: Math.floor(view.to / stepSeconds) - first + 1 }, (_, nth) => {
    const tick = drawn.cloneNode(true);
    tick.classList.add("made");
    tick.dataset.at = (first + nth) * stepSeconds;
    setShown(tick, true);
    move(tick, view.place((first + nth) * stepSeconds));
    all(tick, "text").forEach((text) => say(text, `${rounded((first + nth) * step, step)} ${view.unit.name}`));
    return tick;
  });
}

// Move a mark, with whatever stands beside its line.
function move(mark, x) {
  const lines = all(mark, "line");
  const way = lines.length ? x - numberOf(lines[0], "x1") : 0;
  for (const text of all(mark, "text")) text.setAttribute("x", numberOf(text, "x") + way);
  for (const line of lines) ["x1", "x2"].forEach((name) => line.setAttribute(name, x));
}

// Give the next of 1, 2 or 5 times a power of ten.
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function rounded(value, step) {
  return value.toFixed(between(0, -Math.floor(Math.log10(step) + 1e-9), 9));
}
