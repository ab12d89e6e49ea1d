// A table wider than the page is set in smaller type; if it is still wider, it scrolls in its box, which says so and takes
// the keyboard's focus. On a phone no type would be small enough.
const mark = (box) => {
  const cut = () => box.scrollWidth > box.clientWidth + 1;
  box.classList.remove("tight");
  box.classList.toggle("tight", cut() && innerWidth > 700);
  const wide = cut();
  box.classList.toggle("scrolls", wide);
  const names = { tabindex: "0", role: "region", "aria-label": "Wide content, scrolls sideways" };
  for (const [name, value] of Object.entries(names)) wide ? box.setAttribute(name, value) : box.removeAttribute(name);
};
addEventListener("load", () => {
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => mark(target)));
  // A figure's picture has a box of its own, so that its caption stays; on a phone wide ones, whose letters would be tiny, scroll in it.
  document.querySelectorAll("figure img").forEach((image) => {
    const box = document.createElement("div");
    box.classList.add("picture");
    box.classList.toggle("small-print", image.naturalWidth > 600);
    box.style.setProperty("--drawn", `${image.naturalWidth}px`);
    image.replaceWith(box);
    box.append(image);
  });
  document.querySelectorAll(".wide, .pst-scrollable-table-container, .cell_output, .picture").forEach((box) => watch.observe(box));
});

// What a word of the glossary means stands under the word, within its paragraph; Escape takes it away, and arrows go from word to word.
const place = ({ target }) => {
  const word = target.closest?.(".explained");
  if (!word) return;
  const meaning = word.querySelector(".meaning"), room = word.closest("p").clientWidth - meaning.offsetWidth;
  meaning.style.setProperty("--beside", `${Math.max(0, Math.min(word.offsetLeft, room))}px`);
};
const dismiss = (shown) => document.querySelectorAll(".explained").forEach((word) => word.classList.toggle("dismissed", shown));
for (const event of ["mouseover", "focusin"]) addEventListener(event, place);
for (const event of ["mouseout", "focusout"]) addEventListener(event, () => dismiss(false));
addEventListener("keydown", ({ key, target }) => {
  if (key === "Escape") dismiss(true);
  const aside = { ArrowRight: 1, ArrowLeft: -1 }[key], words = [...document.querySelectorAll(".explained > dfn")];
  if (aside && words.includes(target)) words[words.indexOf(target) + aside]?.focus();
});

// On paper the code of a page stands at its end, in numbered listings; where it was stands which listing it is.
let listed = [];
addEventListener("beforeprint", () => {
  const article = document.querySelector("article"), end = document.createElement("section");
  const line = (kind, text) => Object.assign(document.createElement(kind), { className: "listing", textContent: text });
  const cells = article ? [...article.querySelectorAll(".cell > .cell_input")].filter((cell) => cell.checkVisibility()) : [];
  if (listed.length || !cells.length) return;
  end.append(line("h2", "Code"));
  listed = cells.map((cell, i) => {
    const mark = line("p", `Listing ${i + 1}, at the end of the page.`), box = document.createElement("div");
    box.className = "cell";
    cell.replaceWith(mark);
    box.append(cell);
    end.append(line("p", `Listing ${i + 1}`), box);
    return () => mark.replaceWith(cell);
  });
  article.append(end);
  listed.push(() => end.remove());
});
addEventListener("afterprint", () => {
  listed.forEach((undo) => undo());
  listed = [];
});
