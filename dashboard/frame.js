// What Streamlit has no element for: the page's language, a link past the side bar, and keys for the pages.
const settings = __SETTINGS__;
document.documentElement.lang = settings.lang;

function main() {
  return document.querySelector('[data-testid="stMain"]');
}

let skip = document.getElementById("tc-skip");
if (!skip) {
  skip = Object.assign(document.createElement("a"), { id: "tc-skip", className: "tc-skip", href: "#" });
  skip.addEventListener("click", (event) => {
    event.preventDefault();
    main().tabIndex = -1;
    main().focus();
  });
  document.body.prepend(skip);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable], [role=combobox]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !/^[1-9]$/.test(event.key)) return;
    const links = document.querySelectorAll('[data-testid="stSidebarNavLink"]');
    links[Number(event.key) - 1]?.click();
  });
}
skip.textContent = settings.skip;
