// Filter by pool: the parts of pools that are not selected fade.

function startPools(choice) {
  for (const box of all(choice, "input")) {
    const show = () => all(document, `main .p${box.value}`).forEach((each) => each.classList.toggle("off", !box.checked));
    box.addEventListener("change", show);
    show(); // a browser may restore the selection after a reload
  }
  choice.hidden = false;
}
