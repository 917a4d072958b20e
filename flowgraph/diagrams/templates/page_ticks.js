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
  const step = roundStep((view.span * TICK_GAP) / (view.right - view.left));
  const unit = /\ss\s*$/.test(drawn.textContent) ? " s" : "";
  const first = Math.ceil(view.from / step);
  return Array.from({ length: Math.floor(view.to / step) - first + 1 }, (_, nth) => {
    const tick = drawn.cloneNode(true);
    const at = (first + nth) * step;
    tick.classList.add("made");
    tick.dataset.at = at;
    setShown(tick, true);
    move(tick, view.place(at));
    all(tick, "text").forEach((text) => (text.textContent = secondsText(at, step) + unit));
    return tick;
  });
}

function move(mark, x) {
  for (const line of all(mark, "line")) ["x1", "x2"].forEach((name) => line.setAttribute(name, x));
  for (const text of all(mark, "text")) text.setAttribute("x", x);
}

// Give the next of 1, 2 or 5 times a power of ten.
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function secondsText(seconds, step) {
  return seconds.toFixed(between(0, -Math.floor(Math.log10(step) + 1e-9), 9));
}
