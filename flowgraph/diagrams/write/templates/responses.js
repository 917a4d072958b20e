// Colour tokens by what you choose, and read the numbers of a token. The page is complete without this.

const CURRENT = "current";

function startColours(picker) {
  const select = picker.querySelector("select");
  const legend = document.querySelector(".legend");
  const colour = () => {
    const option = select.selectedOptions[0];
    const scale = option.value === "" ? -1 : Number(option.value);
    for (const box of all(document, ".tokens")) {
      const levels = scale < 0 ? "" : box.dataset.levels.split(" ")[scale];
      Array.from(box.children).forEach((token, place) => (token.className = `t ${scale < 0 ? "0" : levels[place] ?? "x"}`));
    }
    legend.hidden = scale < 0;
    legend.querySelector(".signs").hidden = option.dataset.signed === undefined;
    legend.querySelector(".top").textContent = `full colour from ${[option.dataset.top, option.dataset.unit].join(" ").trim()}`;
  };
  picker.hidden = false;
  select.addEventListener("change", colour);
  colour(); // a browser may have kept another choice
}

// Hover a token, or walk with the arrow keys in a response: its numbers stand at the foot of the page.
function startReadout(box, names, readout) {
  let values = null;
  let current = null;
  const show = (token) => {
    values ??= JSON.parse(box.dataset.values);
    current?.classList.remove(CURRENT);
    current = token;
    if (!token) return;
    token.classList.add(CURRENT);
    const place = Array.prototype.indexOf.call(box.children, token);
    const numbers = names.map((name, scale) => `${name} ${values[scale][place] ?? "none"}`);
    readout.textContent = [`token ${place + 1} of ${box.children.length}: “${token.textContent}”`, ...numbers].join(" · ");
    readout.hidden = false;
  };
  box.addEventListener("pointerover", (event) => show(event.target.closest(".t")));
  box.addEventListener("pointerleave", () => show(null));
  box.addEventListener("blur", () => show(null));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const place = current ? Array.prototype.indexOf.call(box.children, current) + step : step > 0 ? 0 : box.children.length - 1;
    const token = box.children[between(0, place, box.children.length - 1)];
    show(token);
    token.scrollIntoView({ block: "nearest" });
  });
}

recallTheme();
document.addEventListener("DOMContentLoaded", () => {
  startTheme(document.querySelector(".theme"));
  const picker = document.querySelector(".colour");
  startColours(picker);
  const names = all(picker, "option[data-top]").map((option) => option.textContent);
  const readout = document.querySelector(".readout");
  all(document, ".tokens").forEach((box) => startReadout(box, names, readout));
});
