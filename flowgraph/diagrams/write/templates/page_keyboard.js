// The parts of a picture or a table by keyboard.

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// One stop of the Tab key for all marks in `root`; arrow keys go from one to the next.
function rove(root, selector, role) {
  all(root, selector).forEach((mark, place) => {
    mark.setAttribute("tabindex", place ? "-1" : "0");
    if (role) mark.setAttribute("role", role);
  });
  root.addEventListener("focusin", (event) => {
    const mark = event.target.closest(selector);
    if (mark) all(root, selector).forEach((each) => each.setAttribute("tabindex", each === mark ? "0" : "-1"));
  });
  root.addEventListener("keydown", (event) => {
    const mark = event.target.closest(selector);
    const step = MOVES[event.key];
    if (!mark || !step || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    const marks = all(root, selector).filter((each) => !each.closest(".off"));
    event.preventDefault();
    marks[marks.indexOf(mark) + step]?.focus();
  });
}
