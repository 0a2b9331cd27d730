// In reference/errors.html: a field for a message, which leads to its text. Each text that the address names shows what its error
// means, why it occurs, and what to do.
"use strict";
(() => {
  const field = document.getElementById("message");
  const shown = document.getElementById("found");
  const titleOf = (heading) => heading.querySelector("code").textContent;
  const above = (heading) => {
    let at = heading;
    while (at && at.tagName !== "H2") at = at.previousElementSibling;
    return at;
  };
  const nameOf = (heading) => above(heading).firstChild.textContent.trim();
  const entries = [...document.querySelectorAll("h3.message")]
    .map((heading) => ({ title: titleOf(heading), kind: nameOf(heading), place: heading }));

  const make = (tag, className, ...children) => {
    const made = document.createElement(tag);
    made.className = className;
    made.append(...children);
    return made;
  };
  const linkTo = (heading, text) => {
    const link = make("a", "", text);
    link.href = `#${heading.id}`;
    return link;
  };
  // What the class of the text says: its sentence, and the list with its cause.
  const adviceFor = (heading) => {
    const head = above(heading), sentence = head.nextElementSibling;
    let list = sentence;
    while (list.tagName !== "UL") list = list.nextElementSibling;
    const meaning = sentence.tagName === "P" ? [": ", ...sentence.cloneNode(true).childNodes] : [];
    const first = make("p", "", linkTo(head, make("code", "", nameOf(heading))), ...meaning);
    return make("div", "advice", first, list.cloneNode(true));
  };
  const ownHint = (heading) => {
    const next = heading.nextElementSibling;
    return next && next.tagName === "P" ? next : null;
  };

  const listOf = (sentence, found) => {
    const items = found.map(({ title, place }) => make("li", "", linkTo(place, make("code", "", title))));
    return [make("p", "", sentence), make("ul", "", ...items)];
  };

  const lookUp = (message) => {
    const found = findMessage(message, entries);
    const [best, ...others] = found.fits;
    shown.replaceChildren();
    if (best) {
      const hint = ownHint(best.place);
      shown.append(make("p", "", linkTo(best.place, make("code", "", best.title))));
      shown.append(...(hint ? [hint.cloneNode(true)] : []), adviceFor(best.place));
      if (others.length) shown.append(...listOf("These fit as well:", others));
    } else if (found.near.length) {
      shown.append(...listOf("No text fits. These are near:", found.near));
    } else if (message.trim()) {
      shown.append(make("p", "", "No text fits."));
    }
    return best && best.place;
  };

  const showAddress = () => {
    document.querySelectorAll("article > .advice").forEach((advice) => advice.remove());
    let wanted = location.hash.slice(1);
    const target = document.getElementById(wanted);
    if (target && target.matches("h3.message")) (ownHint(target) || target).after(adviceFor(target));
    if (!wanted || target) return;
    try {
      wanted = decodeURIComponent(wanted);
    } catch { /* a text with a bare % */ }
    field.value = wanted;
    const place = lookUp(wanted);
    if (place) location.replace(`#${place.id}`);
  };

  field.form.hidden = false;
  field.addEventListener("input", () => lookUp(field.value));
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    const place = lookUp(field.value);
    if (place) location.hash = place.id;
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      field.form.requestSubmit();
    }
  });
  addEventListener("hashchange", showAddress);
  showAddress();
})();
