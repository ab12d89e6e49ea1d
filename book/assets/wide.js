// A table wider than the page is set in smaller type; if it is still wider, its numbers break off before their intervals; and
// if that is not enough, it scrolls in its box, which says so and takes the keyboard's focus. On a phone nothing would be enough.
const mark = (box) => {
  const cut = () => box.scrollWidth > box.clientWidth + 1;
  box.classList.remove("tight", "broken");
  box.classList.toggle("tight", cut() && innerWidth > 700);
  box.classList.toggle("broken", cut() && innerWidth > 700);
  const wide = cut();
  box.classList.toggle("scrolls", wide);
  const names = { tabindex: "0", role: "region", "aria-label": "Wide content, scrolls sideways" };
  for (const [name, value] of Object.entries(names)) wide ? box.setAttribute(name, value) : box.removeAttribute(name);
};
addEventListener("load", () => {
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => mark(target)));
  // A figure's picture has a box of its own, so that its caption stays. A phone shows it whole, and where its letters are
  // tiny then, a button enlarges it, and it scrolls in its box.
  document.querySelectorAll("figure img, .cell_output > img").forEach((image) => {
    const box = document.createElement("div"), button = document.createElement("button");
    box.className = "picture";
    box.classList.toggle("small-print", image.naturalWidth > 600);
    box.style.setProperty("--drawn", `${image.naturalWidth}px`);
    image.replaceWith(box);
    const change = (enlarged) => {
      box.classList.toggle("enlarged", enlarged);
      button.textContent = enlarged ? "Show whole" : "Enlarge";
      mark(box);
    };
    button.type = "button";
    button.addEventListener("click", () => change(!box.classList.contains("enlarged")));
    box.append(image, button);
    change(false);
  });
  document.querySelectorAll(".wide, .pst-scrollable-table-container, .cell_output, .picture").forEach((box) => watch.observe(box));
});

// The menu shows where one is, however far down that stands.
addEventListener("load", () => {
  const menu = document.querySelector(".bd-sidebar-primary"), here = [...(menu?.querySelectorAll(".current.active") ?? [])].pop();
  if (!here) return;
  const [page, frame] = [here, menu].map((part) => part.getBoundingClientRect());
  if (page.top < frame.top || page.bottom > frame.bottom) menu.scrollTop += page.top - frame.top - menu.clientHeight / 2;
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
