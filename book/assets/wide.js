// A table wider than the page scrolls in its box; the box says so, and takes the keyboard's focus.
const mark = (box) => {
  const wide = box.scrollWidth > box.clientWidth + 1;
  box.classList.toggle("scrolls", wide);
  const names = { tabindex: "0", role: "region", "aria-label": "Wide content, scrolls sideways" };
  for (const [name, value] of Object.entries(names)) wide ? box.setAttribute(name, value) : box.removeAttribute(name);
};
addEventListener("load", () => {
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => mark(target)));
  document.querySelectorAll(".wide, .pst-scrollable-table-container, .cell_output").forEach((box) => watch.observe(box));
});
