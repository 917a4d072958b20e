// Light or dark, remembered for as long as the window is open.

const THEME = "flowgraph-theme"; // its name in the session's storage

function remember(theme) {
  try {
    sessionStorage.setItem(THEME, theme);
  } catch {
    // a page from a file may have no storage
  }
}

function recallTheme() {
  try {
    const theme = sessionStorage.getItem(THEME);
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // as above
  }
}

function startTheme(toggle) {
  const root = document.documentElement;
  const viewer = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : viewer.matches);
  const tell = () => toggle.setAttribute("aria-pressed", String(isDark()));
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    tell();
  });
  viewer.addEventListener("change", tell);
  toggle.hidden = false;
  tell();
}
