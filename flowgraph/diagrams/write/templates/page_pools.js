// The choice of pools: what belongs to one that is left out steps back.

function startPools(choice) {
  for (const box of all(choice, "input")) {
    const show = () => all(document, `main .p${box.value}`).forEach((each) => each.classList.toggle("off", !box.checked));
    box.addEventListener("change", show);
    show(); // a browser may have kept what was chosen before a reload
  }
  choice.hidden = false;
}
