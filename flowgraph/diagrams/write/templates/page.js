// Start the interactive parts of the page. The page is complete without them.

// Save a picture as it is shown, with its style; the page's policy allows a blob that is saved.
function download(svg, name) {
  const copy = svg.cloneNode(true);
  const style = document.createElementNS(svg.namespaceURI, "style");
  style.textContent = document.getElementById("picture-style").textContent;
  all(copy, ".hit").forEach((each) => each.remove());
  copy.append(style);
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  made("a", "", { href: address, download: `${name}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function startPicture(section) {
  const svg = section.querySelector("svg");
  const figure = section.querySelector("figure");
  const title = section.querySelector("h2").textContent;
  const tools = made("div", "", { className: "tools" });
  const hint = made("span", "", { className: "hint" });
  if (svg.querySelector(MARKS)) hint.textContent = startTracing(svg);
  else if (svg.querySelector(".zoomed")) hint.textContent = startTimeline(svg, tools);
  else rove(svg, "[tabindex]", "img");
  if (svg.querySelector('[tabindex="0"]')) svg.setAttribute("role", "group"); // an image has no parts
  if (hint.textContent) figure.prepend(tools);
  tools.append(hint);
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "picture";
  const save = button("Download SVG", `Download SVG: ${title}`, () => download(svg, name));
  save.className = "save";
  figure.append(save);
}

function startPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all(document, "details:not([open])");
    opened.forEach((each) => (each.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((each) => (each.open = false)));
}

recallTheme();
document.addEventListener("DOMContentLoaded", () => {
  startTheme(document.querySelector(".theme"));
  all(document, ".pools").forEach(startPools);
  all(document, "table").forEach(startSorting);
  all(document, "main section").forEach(linkRows);
  all(document, "main section:has(figure svg)").forEach(startPicture);
  startPrinting();
});
