// What Streamlit has no element for: the language of the page, and keys that open the pages.
const language = __LANGUAGE__;
document.documentElement.lang = language;

if (!window.tocsinKeys) {
  window.tocsinKeys = true;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable], [role=combobox]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !/^[1-9]$/.test(event.key)) return;
    document.querySelectorAll('[data-testid="stSidebarNavLink"]')[Number(event.key) - 1]?.click();
  });
}
