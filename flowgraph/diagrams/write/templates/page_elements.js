// Find and make elements.

const all = (root, selector) => Array.from(root.querySelectorAll(selector));
const between = (low, value, high) => Math.min(Math.max(low, value), high);

function made(tag, text, fields = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...fields });
}

function button(text, name, action) {
  const it = made("button", text, { type: "button", title: name, onclick: action });
  it.setAttribute("aria-label", name);
  return it;
}
