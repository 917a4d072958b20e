// The bars of a timeline, drawn again for the seconds that are shown.

// Read how a bar was drawn, so that it is drawn again with the same small distances.
function readBar(bar, view) {
  const [start, end] = [Number(bar.dataset.start), Number(bar.dataset.end)];
  const rects = all(bar, "rect").map((rect) => {
    const x = numberOf(rect, "x");
    return { rect, before: x - view.place(start), after: x + numberOf(rect, "width") - view.place(end) };
  });
  addLabel(bar);
  const left = rects.length ? numberOf(rects[0].rect, "x") : view.place(start);
  const labels = [bar.dataset.label, bar.querySelector("text")?.textContent, bar.dataset.key];
  const texts = all(bar, "text").map((text, nth) => ({
    text,
    middle: getComputedStyle(text).textAnchor === "middle",
    offset: numberOf(text, "x") - left,
    said: [...new Set(nth ? [text.textContent] : labels)].filter(Boolean).map((words) => ({ words })),
  }));
  return { bar, start, end, rects, texts, lines: all(bar, "line") };
}

// A bar's `data-label` is its whole label, its `data-key` the letter of its kind; what is drawn may be cut, or not be
// there for want of room.
function addLabel(bar) {
  const rect = bar.querySelector("rect");
  if (!rect || !bar.dataset.label || bar.querySelector("text")) return;
  const text = document.createElementNS(rect.namespaceURI, "text");
  const placed = { class: "on small", x: 0, y: numberOf(rect, "y") + numberOf(rect, "height") / 2 };
  const aligned = { "text-anchor": "middle", "dominant-baseline": "central" };
  for (const [name, value] of Object.entries({ ...placed, ...aligned })) text.setAttribute(name, value);
  bar.append(text);
}

function say(text, words) {
  if (text.textContent !== words) text.textContent = words;
}

// Measure all that texts may say: every one is written before the first is read, since reading lays the page out.
function measure(texts) {
  for (const nth of [0, 1, 2]) {
    const some = texts.filter((each) => each.said[nth]);
    for (const { text, said } of some) say(text, said[nth].words);
    for (const { text, said } of some) said[nth].length = text.getComputedTextLength();
  }
}

function drawBar({ bar, start, end, rects, texts, lines }, view) {
  const inside = (x) => between(view.left, x, view.right);
  const spans = rects.map(({ before, after }) => [inside(view.place(start) + before), inside(view.place(end) + after)]);
  const [low, high] = spans[0] ?? [0, 0];
  setSeen(bar, start <= view.to && end >= view.from);
  rects.forEach(({ rect }, nth) => {
    rect.setAttribute("x", spans[nth][0]);
    rect.setAttribute("width", Math.max(spans[nth][1] - spans[nth][0], 0.5));
  });
  lines.forEach((line) => [["x1", low], ["x2", high]].forEach(([name, x]) => line.setAttribute(name, x)));
  for (const { text, middle, offset, said } of texts) {
    const fits = said.find((each) => each.length + (middle ? 2 : offset + 2) <= high - low);
    if (fits) say(text, fits.words);
    text.setAttribute("x", middle ? (low + high) / 2 : low + offset);
    setShown(text, fits);
  }
}

function numberOf(element, name) {
  return Number(element.getAttribute(name));
}

// What is out of view is still told by a screen reader and reached by keyboard, which brings it into view.
function setSeen(element, seen) {
  element.classList.toggle("beyond", !seen); // for the page, whose other rules would win; a saved picture has the rest
  for (const [name, value] of [["opacity", "0"], ["pointer-events", "none"]]) {
    if (seen) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

function setShown(element, shown) {
  if (shown) element.removeAttribute("display");
  else element.setAttribute("display", "none");
}
